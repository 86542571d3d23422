"""Misspelled settings are refused with a near miss, and those without effect are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import MalformedYaml, RecipeFault
from kiln.feedstock.settings import TypedSettings, no_effect_notes, read_document, setting_definitions

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, text: str) -> Path:
    path = folder / "conda-forge.yml"
    path.write_text(text)
    return path


# A file, the places and texts of all errors, and the cure of the first.
REFUSED = [
    ("githb: {}\n", ["1:1: unknown setting 'githb'"], "did you mean 'github'?"),
    (
        "build_platfrom: {}\nconda_build:\n  error_overlinkng: true\ndocker: {run_arg: x}\n",
        [
            "1:1: unknown setting 'build_platfrom'",
            "3:3: unknown setting 'conda_build.error_overlinkng'",
            "4:10: unknown setting 'docker.run_arg'",
        ],
        "did you mean 'build_platform'?",
    ),
    (
        "bot: {}\nworkflow_settings:\n  store_build_artifact: true\n",
        ["3:3: unknown setting 'workflow_settings.store_build_artifact'"],
        "did you mean 'store_build_artifacts'?",
    ),
    ("provider: {linx: azure}\n", ["1:12: unknown setting 'provider.linx'"], "did you mean 'linux' or 'linux_64'"),
    ("channel_priority: strickt\n", ["1:1: channel_priority is 'strickt', expected one of"], "did you mean 'strict'?"),
    (
        "github_actions: {timeout_minutes: soon}\n",
        ["1:18: github_actions.timeout_minutes is 'soon', expected an integer"],
        "",
    ),
    ("conda_build: {error_overlinking: maybe}\n", ["1:15: conda_build.error_overlinking is 'maybe'"], ""),
    ("azure: {forc: true}\n", ["1:9: unknown setting 'azure.forc'"], "did you mean 'force'?"),
]
COMMAND_EFFECT = setting_definitions()["docker.command"].effect
NOTED = [
    ("", []),
    ("[]\n", []),
    (  # conda-smithy ignores it, and it is no misspelling
        "remote_ci_setup_channels: [conda-forge]\n",
        ["conda-forge.yml:1:1: unknown setting 'remote_ci_setup_channels' (did you mean 'remote_ci_setup'?)"],
    ),
    ("bot: {automerge: true}\nprovider: {linux_64: azure}\n", []),
    ("conda_build: {error_overdepending: true, filename_hashing: false}\n", []),
    ("something: 1\n", ["conda-forge.yml:1:1: unknown setting 'something'"]),
    ("azure: {max_parallel: many}\n", ["conda-forge.yml:1:9: azure.max_parallel is 'many', expected an integer"]),
    (
        "github: {}\ndocker:\n  command: sh\n",
        [f"conda-forge.yml:3:3: docker.command has no effect in kiln ({COMMAND_EFFECT})"],
    ),
]


@pytest.mark.parametrize(("text", "errors", "cure"), REFUSED)
def test_misspelled_and_invalid_settings_are_refused_all_at_once(
    tmp_path: Path, text: str, errors: list[str], cure: str
) -> None:
    with pytest.raises(RecipeFault) as caught:
        read_document(written(tmp_path, text))
    heads = [f"{error.at}: {error.what}" for error in (caught.value, *caught.value.others)]
    assert len(heads) == len(errors)
    for head, expected in zip(heads, errors, strict=True):
        assert head.startswith(f"conda-forge.yml:{expected}")
    assert caught.value.hint.startswith(cure)


@pytest.mark.parametrize(("text", "lines"), NOTED)
def test_settings_without_effect_are_named(tmp_path: Path, text: str, lines: list[str]) -> None:
    path = written(tmp_path, text)
    read_document(path)
    assert no_effect_notes(path) == lines


def test_a_missing_file_has_the_defaults(tmp_path: Path) -> None:
    settings = TypedSettings.read(tmp_path / "conda-forge.yml")
    assert settings.get_text("channel_priority", "strict") == "strict"
    assert settings.get_nested("github_actions").get_number("timeout_minutes", 360) == 360
    assert settings.get_list("secrets", []) == []
    assert no_effect_notes(tmp_path / "conda-forge.yml") == []


def test_numbers_may_be_quoted(tmp_path: Path) -> None:
    settings = TypedSettings.read(written(tmp_path, "conda_build: {zstd_compression_level: '19'}\n"))
    assert settings.get_nested("conda_build").get_number("zstd_compression_level", 16) == 19


def test_a_setting_that_decides_packages_has_one_value(tmp_path: Path) -> None:
    with pytest.raises(MalformedYaml, match="channel_priority"):
        read_document(written(tmp_path, "channel_priority: strict\nchannel_priority: disabled\n"))
    assert read_document(written(tmp_path, "bot: {a: 1}\nbot: {a: 2}\n")).value == {"bot": {"a": "2"}}


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path, "min_py_ver: '38'\n")
    assert TypedSettings.read(path).get_text("min_py_ver", "") == "38"
    written(tmp_path, "min_py_ver: '39'\n")
    assert TypedSettings.read(path).get_text("min_py_ver", "") == "39"
    written(tmp_path, "githb: {}\n")
    for _ in range(2):
        with pytest.raises(RecipeFault, match="unknown setting 'githb'"):
            read_document(path)
