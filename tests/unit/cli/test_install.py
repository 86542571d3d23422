"""``kiln install`` has one place to install into: a prefix, or the environment of a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln import cli
from kiln.cli import install
from kiln.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.processes
def test_a_name_is_the_prefix_where_conda_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CONDA_ENVS_DIRS", str(tmp_path / "envs"))
    parser, _ = cli.parser_for("install")
    request = install.request(parser.parse_args(["six", "-n", "tf"]))
    assert request.prefix == tmp_path / "envs" / "tf"


@pytest.mark.parametrize("words", [["six"], ["six", "-n", "a", "-p", "b"]])
def test_one_place_is_required(words: list[str]) -> None:
    parser, _ = cli.parser_for("install")
    with pytest.raises(UsageError):
        parser.parse_args(words)


def test_a_named_environment_is_activated_by_its_name(tmp_path: Path) -> None:
    assert install.activation(tmp_path, "tf").startswith("activate  conda activate tf\n")
    assert install.activation(tmp_path).startswith(f"activate  conda activate {tmp_path}\n")
