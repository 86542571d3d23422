"""Commands in hints can be pasted: they start the kiln that runs, on its feedstock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import RecipeFault, UnknownConfig, UsageError
from kiln.cli import main
from kiln.cli.main import make_hints_pasteable, make_pasteable
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

META = "package:\n  name: a\n  version: 1\n"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Run a kiln that is not on PATH, in a folder of its own."""
    for name in ("kiln", "python"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kiln --help lists the commands", "bin/kiln --help lists the commands"),
        ("kiln rerender writes them", "bin/kiln rerender writes them"),
        ("'kiln image base' makes one; kiln build x", "'bin/kiln image base' makes one; bin/kiln build x"),
        ("kiln installs; as kiln -C a build, my-kiln build", "kiln installs; as kiln -C a build, my-kiln build"),
        (".venv/bin/kiln build, python -m kiln build", ".venv/bin/kiln build, python -m kiln build"),
    ],
)
def test_commands_get_the_path_of_the_program(folder: Path, text: str, expected: str) -> None:
    assert make_pasteable(text, folder) == expected
    assert make_pasteable(expected, folder) == expected


def test_another_folder_is_named(folder: Path) -> None:
    assert make_pasteable("kiln rerender", folder / "a b") == f"bin/kiln -C '{folder}/a b' rerender"


def test_the_name_is_enough_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", str(folder / "bin"))
    assert make_pasteable("kiln rerender", folder) == "kiln rerender"


def test_all_hints_of_an_error_are_completed(folder: Path) -> None:
    error = RecipeFault("a", hint="kiln lint", others=(RecipeFault("b", hint="kiln render"),))
    make_hints_pasteable(error, folder)
    assert str(error) == "a\n  try: bin/kiln lint\nb\n  try: bin/kiln render"


def test_a_command_that_fails_and_one_that_ends_well_print_such_commands(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = builders.feedstock(folder / "f", META).root
    assert main.run(["-C", "f", "build", "--all"]) == UnknownConfig.exit_code
    commands = f"bin/kiln -C {root} matrix lists the configs, bin/kiln -C {root} rerender writes them"
    assert f"  try: {commands}\n" in capsys.readouterr().err
    assert main.run(["-C", "f", "runs"]) == 0
    assert capsys.readouterr().out == f"no run is recorded yet: bin/kiln -C {root} build --all starts one\n"
    assert main.run(["xyz"]) == UsageError.exit_code
    assert capsys.readouterr().err.endswith("  try: bin/kiln --help lists the commands\n")
