"""The last lines of a failed build: an error, and commands that can be pasted."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import (
    AlreadyRunning,
    BuildFailed,
    KilnError,
    RecipeFault,
    TestsFailed,
    UnknownConfig,
    UnsupportedPlatform,
    UsageError,
)
from kiln.cli import main
from kiln.cli.main import COMMANDS, OPTION_GROUPS, failed_run_error, make_hints_pasteable, make_pasteable
from kiln.state.results import ConfigState
from tests import builders
from tests.unit.run.view.run import a_config, a_run

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

ROOT = Path(__file__).parents[3]

FAILED, DONE, LOCKED = ConfigState.FAILED, ConfigState.DONE, ConfigState.LOCKED


@pytest.fixture(autouse=True)
def _typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["kiln", "build", "--all"])
    program(tmp_path / "bin" / "kiln")
    program(tmp_path / "bin" / "python")
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def program(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.touch(mode=0o755)


def options_of(*words: str) -> argparse.Namespace:
    return main.command_parser_and_module("build")[0].parse_args(words)


def test_the_folder_of_a_feedstock_stands_before_the_command() -> None:
    with pytest.raises(UsageError, match="unrecognized arguments") as caught:
        main.command_parser_and_module("rerender")[0].parse_args(["-C", "absl-py"])
    assert caught.value.hint == "-C stands before the command: kiln -C DIR rerender"


def error_of(
    states: Mapping[str, ConfigState], errors: Mapping[str, KilnError], *words: str, exit_code: int = 17
) -> KilnError:
    report = a_run(*(a_config(name, state) for name, state in states.items()))
    return failed_run_error(report, errors, options_of(*words), exit_code=exit_code)


def test_the_error_names_the_configs_and_its_hint_is_commands() -> None:
    errors = {"linux_64_b": BuildFailed("its script ended with exit code 1")}
    error = error_of({"linux_64_a": DONE, "linux_64_b": FAILED}, errors, "--all", "--container", "none")
    assert str(error).splitlines() == [
        "1 of 2 configs not built: linux_64_b",
        "  try: kiln build --failed --container none",
        "       kiln build linux_64_b --debug --container none",
    ]
    assert type(error) is BuildFailed


@pytest.mark.parametrize(
    "words",
    [(), ("--rehearse",), ("--engine", "conda-build", "--network", "always"), ("--mirror", "https://m.example")],
)
def test_the_commands_of_the_hint_are_valid_and_keep_the_options(words: tuple[str, ...]) -> None:
    error = error_of({"a b": FAILED}, {"a b": BuildFailed("x")}, *words)
    commands = [shlex.split(line) for line in error.hint.splitlines()]
    repeated, *debugs = [options_of(*command[2:]) for command in commands]
    original = options_of(*words)
    for options in (repeated, *debugs):
        for name in ("engine", "network", "mirror", "rehearsal"):
            assert getattr(options, name) == getattr(original, name)
    assert repeated.failed
    assert [options.configs for options in debugs] == ([] if original.rehearsal else [["a b"]])


def test_a_shell_is_offered_where_a_script_failed_alone() -> None:
    assert "--debug" not in error_of({"a": FAILED}, {"a": TestsFailed("x")}, exit_code=19).hint


def test_many_configs_are_counted_and_locked_ones_wait() -> None:
    error = error_of(dict.fromkeys("abcde", FAILED) | {"z": DONE}, {})
    assert error.what == "5 of 6 configs not built: a, b, c and 2 more"
    locked = error_of({"a": LOCKED}, {"a": AlreadyRunning("busy")}, exit_code=20)
    assert isinstance(locked, AlreadyRunning)
    assert locked.what == "1 of 1 config locked by another process: a"


def test_the_commands_begin_as_the_user_began_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["kiln", "-C", "my feedstock", "build", "--all"])
    assert error_of({"a": FAILED}, {}).hint == "kiln -C 'my feedstock' build --failed"
    script = ["--called", "build-locally.py", "-C", str(tmp_path), "build", "--calling-python", "p", "--all"]
    monkeypatch.setattr("sys.argv", ["kiln", *script])
    assert error_of({"a": FAILED}, {}).hint == "python build-locally.py --failed"
    monkeypatch.chdir("/")
    assert error_of({"a": FAILED}, {}).hint == f"python {tmp_path}/build-locally.py --failed"


def test_the_commands_start_the_kiln_that_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hint() -> str:
        return error_of({"a": FAILED}, {}).hint.partition("\n")[0]

    program(tmp_path / "other" / "kiln")
    monkeypatch.setenv("PATH", str(tmp_path / "other"))  # another kiln
    assert hint() == "bin/kiln build --failed"
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert hint() == "bin/kiln build --failed"
    monkeypatch.setattr("sys.argv", ["kiln", "-C", str(tmp_path), "build"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert hint() == f"{tmp_path}/bin/kiln -C {tmp_path} build --failed"
    (tmp_path / "bin" / "kiln").unlink()
    assert hint() == f"{tmp_path}/bin/python -m kiln -C {tmp_path} build --failed"


@pytest.mark.parametrize("script", ["build-locally.py", "kiln/__main__.py", "kiln/feedstock/init/build-locally.py.txt"])
def test_windows_is_refused_in_one_sentence(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert end.value.code == UnsupportedPlatform.exit_code
    assert "WSL" in capsys.readouterr().err


META = "package:\n  name: a\n  version: 1\n"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Run a kiln that is not on PATH, in a folder of its own."""
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
    assert f"  try: bin/kiln -C {root} rerender writes them\n" in capsys.readouterr().err
    assert main.run(["-C", "f", "runs"]) == 0
    assert capsys.readouterr().out == f"no run is recorded yet: bin/kiln -C {root} build --all starts one\n"
    assert main.run(["xyz"]) == UsageError.exit_code
    assert capsys.readouterr().err.endswith("  try: bin/kiln --help lists the commands\n")


LEAVES = [*COMMANDS, *OPTION_GROUPS, "fleet down", "fleet status", "fleet attach", "image worker"]


@pytest.mark.parametrize("command", sorted({*LEAVES, ""}))
def test_the_help_of_every_command_fits_a_screen(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.run([*command.split(), "--help"]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 40


@pytest.mark.parametrize("command", OPTION_GROUPS)
def test_every_option_is_named_by_the_help_and_explained_by_the_whole_one(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*command.split(), "--help-all"]) == 0
    whole = capsys.readouterr().out
    assert main.run([*command.split(), "--help"]) == 0
    short = capsys.readouterr().out
    options = set(re.findall(r"(?m)^  (?:-\w(?: \w+)?, )?(--[a-z-]+)", whole))
    assert options <= set(re.findall(r"--[a-z-]+", short))
    # Those of a plan are a part of those of a run.
    named = set(" ".join(OPTION_GROUPS[command].values()).split())
    assert options - {"--help", "--help-all"} <= named, "an option stands with those that it belongs to"
    assert named <= options or command == "fleet plan"
