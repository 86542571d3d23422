"""The arguments of ``kiln install``: one place to install into, and match specs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.cli import install, main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.processes
def test_a_name_is_the_prefix_where_conda_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CONDA_ENVS_DIRS", str(tmp_path / "envs"))
    parser, _ = main.command_parser_and_module("install")
    request = install.install_request(parser.parse_args(["six", "-n", "tf"]))
    assert request.prefix == tmp_path / "envs" / "tf"


@pytest.mark.parametrize("words", [["six"], ["six", "-n", "a", "-p", "b"]])
def test_one_place_is_required(words: list[str]) -> None:
    parser, _ = main.command_parser_and_module("install")
    with pytest.raises(UsageError):
        parser.parse_args(words)


def test_a_named_environment_is_activated_by_its_name(tmp_path: Path) -> None:
    assert install.activation_commands(tmp_path, "tf").startswith("activate  conda activate tf\n")
    assert install.activation_commands(tmp_path).startswith(f"activate  conda activate {tmp_path}\n")


@pytest.mark.parametrize(
    ("spec", "why"),
    [("app >>1", "is not a version"), ("py* 3", "the name of a package has no asterisk"), ("a .1", "is not a version")],
)
def test_what_names_no_package_is_refused(spec: str, why: str) -> None:
    parser, _ = main.command_parser_and_module("install")
    with pytest.raises(UsageError, match="is not a match spec") as caught:
        install.install_request(parser.parse_args(["six", spec, "-p", "prefix"]))
    assert why in caught.value.why
