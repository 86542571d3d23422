from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.feedstock.lint.recipes import META, messages

if TYPE_CHECKING:
    from pathlib import Path

VALID = [
    "azure: {force: true, settings_linux: {pool: {vmImage: x}, timeoutInMinutes: 3, other: 1}}",
    "azure: null",
    "bot: {anything: [1]}",
    "build_platform: {osx_arm64: osx_64}",
    "clone_depth: 3",
    "clone_depth: 3.0",
    "conda_build: {pkg_format: 2, other: x}",
    "conda_build: {pkg_format: '2'}",
    "github_actions: {triggers: [1, a], free_disk_space: null}",
    "linter: {skip: [lint_stdlib]}",
    "noarch_platforms: linux_64",
    "noarch_platforms: [linux_64, win_64]",
    "provider: {linux_64: [azure, github_actions], win: true, other: 3}",
    "test: native",
    "templates: {a: b}",
    "workflow_settings: {free_disk_space: max}",
    "workflow_settings: {free_disk_space: [{os: linux, value: max}, {platform: [osx_64], value: skip}]}",
    "",
]
# A file, and the place and text of its only lint.
INVALID = [
    ("githb: {}", "conf:1:1", "unknown setting 'githb'"),
    ("azure: {forc: true}", "conf:1:9", "unknown setting 'azure.forc'"),
    ("azure: {force: yes}", "conf:1:9", "azure.force is 'yes', expected true or false"),
    ("clone_depth: none", "conf:1:1", "clone_depth is 'none', expected an integer"),
    ("clone_depth: true", "conf:1:1", "clone_depth is True, expected an integer"),
    ("conda_build: {pkg_format: true}", "conf:1:15", "conda_build.pkg_format is True, expected one of 1, 2, tar"),
    ("linter: {skip: [all]}", "conf:1:10", "linter.skip is a list, expected a list of hint_os_version"),
    ("provider: {linux_64: gitlab}", "conf:1:12", "provider.linux_64 is 'gitlab', expected one of"),
    ("shellcheck: {enabled: null}", "conf:1:14", "shellcheck.enabled is None, expected true or false"),
    ("templates: {a: 1}", "conf:1:1", "templates is a mapping, expected"),
    ("test: {}", "conf:1:1", "test is a mapping, expected one of"),
    (
        "workflow_settings: {pagefile_size: [{os: bsd, value: 1}]}",
        "conf:1:21",
        "workflow_settings.pagefile_size is a list",
    ),
    ("workflow_settings: {pagefile_size: [1]}", "conf:1:21", "workflow_settings.pagefile_size is a list"),
]
DEPRECATED = [
    ("compiler_stack: comp7", {"compiler_stack is deprecated"}),
    ("compiler_stack: null", set()),
    ("azure: {store_build_artifacts: false}", {"azure.store_build_artifacts is deprecated"}),
    ("matrix: {}", {"matrix is deprecated"}),
]


@pytest.mark.parametrize("text", VALID)
def test_valid_settings(tmp_path: Path, text: str) -> None:
    assert [message for message in messages(tmp_path, META, {"conda-forge.yml": text}) if message.id == "schema"] == []


@pytest.mark.parametrize(("text", "place", "expected"), INVALID)
def test_invalid_settings_are_reported_at_their_key(tmp_path: Path, text: str, place: str, expected: str) -> None:
    [message] = messages(tmp_path, META, {"conda-forge.yml": text})
    assert message.id == "schema"
    assert message.severity == "lint"
    assert str(message.at) == place.replace("conf", "conda-forge.yml")
    assert message.text.startswith(expected)


def test_a_near_miss_is_suggested(tmp_path: Path) -> None:
    [message] = messages(tmp_path, META, {"conda-forge.yml": "provider: {linux_64: github_action}"})
    assert message.cure == "did you mean 'github_actions'?"


@pytest.mark.parametrize(("text", "expected"), DEPRECATED)
def test_deprecated_settings_are_hints(tmp_path: Path, text: str, expected: set[str]) -> None:
    hints = [message for message in messages(tmp_path, META, {"conda-forge.yml": text}) if message.severity == "hint"]
    assert {message.text for message in hints} == expected


@pytest.mark.parametrize(
    ("text", "expected", "cure"),
    [
        ("provider: {linux_46: azure}", "unknown setting 'provider.linux_46'", "did you mean 'linux_64'"),
        (
            "docker: {command: sh}",
            "docker.command has no effect in kiln: kiln starts its own builder in the container, without a shell",
            "remove the setting, unless conda-forge's CI needs it",
        ),
    ],
)
def test_settings_without_effect_are_hints_of_kiln(tmp_path: Path, text: str, expected: str, cure: str) -> None:
    [message] = messages(tmp_path, META, {"conda-forge.yml": text})
    assert (message.id, message.severity, message.text) == ("kiln-settings", "hint", expected)
    assert message.cure.startswith(cure)


def test_a_replaced_variable_names_the_setting_in_its_place(tmp_path: Path) -> None:
    settings = "azure: {settings_win: {variables: {MINIFORGE_HOME: x}}}"
    found = messages(tmp_path, META, {"conda-forge.yml": settings}, of_conda_forge=True)
    assert [message.cure for message in found if message.id == "CF-007"] == ["use workflow_settings.tools_install_dir"]
