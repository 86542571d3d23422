from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import RecipeFault
from kiln.feedstock import job_settings

if TYPE_CHECKING:
    from pathlib import Path


def jobs(folder: Path, text: str | None) -> dict[str, tuple[str, str]]:
    """Return the provider and the build platform of each platform."""
    path = folder / "conda-forge.yml"
    if text is not None:
        path.write_text(text)
    return {
        job.platform_name: (job.provider, job.build_platform) for job in job_settings.read_matrix_settings(path).jobs
    }


DEFAULT = {
    "linux_64": ("github_actions", "linux-64"),
    "osx_64": ("azure", "osx-64"),
    "win_64": ("github_actions", "win-64"),
}


@pytest.mark.parametrize("text", [None, "", "# nothing\n", "provider: {}\n"])
def test_without_settings_the_three_default_platforms_are_built(tmp_path: Path, text: str | None) -> None:
    assert jobs(tmp_path, text) == DEFAULT


def test_a_provider_of_null_leaves_a_platform_out_and_a_list_adds_jobs(tmp_path: Path) -> None:
    text = "provider:\n  osx_64: null\n  win: null\n  linux_aarch64: [azure]\n"
    result = jobs(tmp_path, text)
    assert result["linux_aarch64"] == ("azure", "linux-aarch64")
    assert "osx_64" not in result


def test_a_platform_that_another_one_builds_has_its_provider(tmp_path: Path) -> None:
    result = jobs(tmp_path, "build_platform:\n  linux_aarch64: linux_64\n  osx_arm64: osx_64\n")
    assert result == DEFAULT | {"linux_aarch64": ("github_actions", "linux-64"), "osx_arm64": ("azure", "osx-64")}


def test_native_is_the_provider_with_such_machines(tmp_path: Path) -> None:
    result = jobs(tmp_path, "provider:\n  linux_ppc64le: native\n  linux_aarch64: native\n  osx_arm64: default\n")
    assert (result["linux_ppc64le"][0], result["linux_aarch64"][0], result["osx_arm64"][0]) == (
        "travis",
        "github_actions",
        "azure",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "a mapping of settings"),
        ("provider: azure\n", "provider is 'azure', expected a mapping"),
        ("recipe_dir: other\n", "recipe_dir is not 'recipe'"),
    ],
)
def test_settings_that_are_malformed_or_not_supported_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RecipeFault, match=message) as caught:
        jobs(tmp_path, text)
    assert caught.value.at is not None
    assert caught.value.at.file == "conda-forge.yml"
