"""The settings of conda-forge.yml for builds do what they say, or are refused."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import RecipeFault
from kiln.base.position import Place
from kiln.feedstock import job_settings
from kiln.feedstock.job_settings import (
    ci_secret_names,
    conda_build_only_settings,
    conda_settings,
    container_settings,
    package_settings,
    require_supported_priority,
    runs_emulated_tests,
)

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, text: str) -> Path:
    path = folder / "conda-forge.yml"
    path.write_text(text)
    return path


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
    path.write_text("channel_priority: strickt\n")
    with pytest.raises(RecipeFault, match="channel_priority is 'strickt'") as caught:
        conda_settings(path)
    assert caught.value.hint == "did you mean 'strict'?"


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
    assert package_settings(path).level == level


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("zstd_compression_level: 23", "conda_build/zstd_compression_level is '23'"),
        ("zstd_compression_level: 0", "conda_build/zstd_compression_level is '0'"),
        ("pkg_format: '1'", "conda_build/pkg_format is '1'"),
    ],
)
def test_a_form_of_packages_that_the_engine_does_not_make_is_refused(tmp_path: Path, setting: str, what: str) -> None:
    (tmp_path / "conda-forge.yml").write_text(f"github: {{}}\nconda_build:\n  {setting}\n")
    with pytest.raises(RecipeFault) as caught:
        package_settings(tmp_path / "conda-forge.yml")
    assert (caught.value.what, caught.value.at) == (what, Place(file="conda-forge.yml", line=2, column=1))


def test_priority_and_overlinking_are_those_of_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "conda-forge.yml"
    assert (package_settings(path).channel_priority, package_settings(path).error_overlinking) == ("strict", False)
    written(tmp_path, "channel_priority: disabled\nconda_build: {error_overlinking: true}\n")
    assert (package_settings(path).channel_priority, package_settings(path).error_overlinking) == ("disabled", True)


def test_a_flexible_priority_of_several_channels_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "bot: {}\nchannel_priority: flexible\n")
    require_supported_priority(path, [("conda-forge",)])
    with pytest.raises(RecipeFault, match="flexible, with the channels conda-forge, nvidia") as caught:
        require_supported_priority(path, [("conda-forge",), ("conda-forge", "nvidia")])
    assert caught.value.at == Place(file="conda-forge.yml", line=2, column=1)
    require_supported_priority(written(tmp_path, "channel_priority: disabled\n"), [("conda-forge", "nvidia")])


def test_settings_of_conda_build_alone_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "conda_build: {zstd_compression_level: 3, filename_hashing: false}\n")
    assert conda_build_only_settings(path) == ("conda_build.filename_hashing",)


@pytest.mark.parametrize(
    "arguments", ["", "--shm-size=2g --gpus all", "-e MODE=fast --ulimit nofile=1024", "--init --env A='b c'"]
)
def test_harmless_options_of_containers_hold(tmp_path: Path, arguments: str) -> None:
    settings = container_settings(written(tmp_path, f'docker: {{executable: podman, run_args: "{arguments}"}}\n'))
    assert settings.engine == "podman"
    assert " ".join(settings.run_arguments) == arguments.replace("'", "")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ("-v /:/host", "-v"),
        ("--privileged", "--privileged"),
        ("--label kiln.owner=me", "--label"),
        ("--init --volume=/:/host", "--volume=/:/host"),
        ("--env TOKEN", "--env TOKEN"),
        ("-e=TOKEN", "-e TOKEN"),
        ("--network host", "--network"),
        ("--shm-size 1g -- image", "--"),
        ("--gpus --privileged --pid=host", "--pid=host"),
    ],
)
def test_a_feedstock_cannot_open_the_machine_to_its_build(tmp_path: Path, arguments: str, option: str) -> None:
    path = written(tmp_path, f"github: {{}}\ndocker: {{run_args: {arguments}}}\n")
    with pytest.raises(RecipeFault) as caught:
        container_settings(path)
    assert caught.value.what == f"docker.run_args has the option {option!r}"
    assert caught.value.at == Place(file="conda-forge.yml", line=2, column=1)
    assert f"CONDA_FORGE_DOCKER_RUN_ARGS={shlex.quote(arguments)} " in caught.value.hint


def test_the_default_engine_of_conda_smithy_leaves_the_choice(tmp_path: Path) -> None:
    assert container_settings(written(tmp_path, "docker: {executable: docker}\n")).engine is None
    assert container_settings(written(tmp_path, "docker: {executable: podman}\n")).engine == "podman"


def test_a_feedstock_cannot_choose_a_program(tmp_path: Path) -> None:
    with pytest.raises(RecipeFault, match=r"docker\.executable is './evil'"):
        container_settings(written(tmp_path, "docker: {executable: ./evil}\n"))


@pytest.mark.parametrize(
    ("text", "emulated"),
    [("", True), ("test: all", True), ("test: native_and_emulated", True), ("test: native", False)],
)
def test_tests_of_another_platform_run_unless_they_are_native(tmp_path: Path, text: str, *, emulated: bool) -> None:
    assert runs_emulated_tests(written(tmp_path, text)) is emulated


def test_secrets_are_names_of_variables(tmp_path: Path) -> None:
    assert ci_secret_names(written(tmp_path, "secrets: [A_KEY, OTHER, A_KEY]\n")) == ("A_KEY", "OTHER")
    with pytest.raises(RecipeFault, match="not the name of a variable"):
        ci_secret_names(written(tmp_path, "secrets: ['A }} b']\n"))


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
