from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.errors import RecipeFault
from kiln.expand import conda_forge_yml, conda_settings, package_format
from kiln.model.source_position import Place

if TYPE_CHECKING:
    from pathlib import Path


def jobs(folder: Path, text: str | None) -> dict[str, tuple[str, str]]:
    """Return the provider and the build platform of each platform."""
    path = folder / "conda-forge.yml"
    if text is not None:
        path.write_text(text)
    return {job.name: (job.provider, job.build_platform) for job in conda_forge_yml.read(path).jobs}


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
        ("provider: azure\n", "'provider' is not a mapping"),
        ("recipe_dir: other\n", "recipe_dir is not 'recipe'"),
    ],
)
def test_settings_that_are_malformed_or_not_supported_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RecipeFault, match=message) as caught:
        jobs(tmp_path, text)
    assert caught.value.at is not None
    assert caught.value.at.file == "conda-forge.yml"


def test_the_settings_of_conda_and_their_defaults(tmp_path: Path) -> None:
    path = tmp_path / "conda-forge.yml"
    result = conda_settings(path)
    assert (result.channel_priority, dict(result.conda_build), result.solver) == ("strict", {"pkg_format": "2"}, None)
    path.write_text(
        "channel_priority: flexible\nconda_build: {pkg_format: '1'}\nconda_build_tool: conda-build+classic\n"
    )
    result = conda_settings(path)
    assert (result.channel_priority, dict(result.conda_build), result.solver) == (
        "flexible",
        {"pkg_format": "1"},
        "classic",
    )
    path.write_text("channel_priority: some\n")
    with pytest.raises(RecipeFault, match="channel_priority is 'some'"):
        conda_settings(path)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (None, 16),
        ("conda_build: {}\n", 16),
        ("conda_build:\n  pkg_format: '2'\n", 16),
        ("conda_build:\n  pkg_format: 2\n  zstd_compression_level: 19\n", 19),
        ("conda_build:\n  zstd_compression_level: '1'\n", 1),
    ],
)
def test_packages_have_the_level_of_the_settings(tmp_path: Path, text: str | None, level: int) -> None:
    path = tmp_path / "conda-forge.yml"
    if text is not None:
        path.write_text(text)
    assert package_format(path).level == level


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("zstd_compression_level: 23", "conda_build/zstd_compression_level is '23'"),
        ("zstd_compression_level: fast", "conda_build/zstd_compression_level is 'fast'"),
        ("zstd_compression_level: -1", "conda_build/zstd_compression_level is '-1'"),
        ("pkg_format: '1'", "conda_build/pkg_format is '1'"),
    ],
)
def test_a_form_of_packages_that_the_engine_does_not_make_is_refused(tmp_path: Path, setting: str, what: str) -> None:
    (tmp_path / "conda-forge.yml").write_text(f"github: {{}}\nconda_build:\n  {setting}\n")
    with pytest.raises(RecipeFault) as caught:
        package_format(tmp_path / "conda-forge.yml")
    assert (caught.value.what, caught.value.at) == (what, Place(file="conda-forge.yml", line=2, column=1))
