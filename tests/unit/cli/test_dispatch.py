"""A command line comes to its command, or to an error with its exit code."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.base.errors import DiskFull, Interrupted, MissingTool, NotWritable, SystemFault, UsageError
from kiln.cli import main
from kiln.state.ledger.ledger import Ledger
from tests import builders
from tests.runs import worked_through

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bild"], "did you mean 'build'"),
        (["build", "--nonsense"], "--nonsense"),
        (["doctor", "--cudda", "12.5"], "did you mean '--cuda'"),
    ],
)
def test_a_mistyped_word_is_a_usage_error(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(words) == UsageError.exit_code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    ["build --notice", "build --distdir=", "publish --to x --attest", "matrix -e", "fleet plan --zone", "init", "-C"],
)
def test_an_empty_value_is_not_taken_for_none(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    option = words.rpartition(" ")[2]
    given = words.split() if option.endswith("=") else [*words.split(), ""]
    assert main.run(given) == UsageError.exit_code
    name = option.strip("=") if option.startswith("-") else "NAME"
    assert f"argument {name}: the value is empty; is a variable of the shell not set?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    ["-C=~/x", "publish --to ~/x", "install a -p ~", "build --distdir=~/x", "collect ~me/x", "fleet plan --vars ~/x"],
)
def test_a_folder_named_tilde_is_not_made(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(words.split()) == UsageError.exit_code
    assert "the shell did not expand ~ in '~" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["build", "--help"]])
def test_help_succeeds(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(words) == 0
    assert "kiln" in capsys.readouterr().out


@pytest.mark.processes
@pytest.mark.parametrize("words", [["--gpu", "p3", "--tf", "2.18"], []])
def test_an_output_without_signs_gets_their_numbers(words: list[str]) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "kiln", "doctor", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert "\\u2713" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.processes
def test_a_full_output_is_not_a_full_disk_of_the_working_folder() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kiln", "matrix"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.stderr.startswith("error: the disk became full while writing <stdout>\n")
    assert done.returncode == DiskFull.exit_code


@pytest.mark.processes
def test_a_command_rarely_searches_for_cycles() -> None:
    count = "[entry['collections'] for entry in gc.get_stats()]"
    code = (
        f"import atexit, gc, sys; from kiln.__main__ import main; before = {count};"
        f"atexit.register(lambda: print(before == {count})); main(sys.argv[1:])"
    )
    words = (sys.executable, "-c", code, "build", "--help")
    process = subprocess.run(words, text=True, capture_output=True, check=True)
    assert process.stdout.splitlines()[-1] == "True"


def test_help_names_the_program_that_was_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--called", "build-locally.py", "build", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: build-locally.py [OPTION ...]")


def test_an_interrupt_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "dispatch", interrupted)
    assert main.run(["matrix"]) == Interrupted.exit_code
    assert "run the same command to continue" in capsys.readouterr().err


def test_a_missing_dependency_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def incomplete(_: object) -> int:
        raise ModuleNotFoundError("No module named 'jinja2'", name="jinja2")

    monkeypatch.setattr(main, "dispatch", incomplete)
    assert main.run(["matrix"]) == MissingTool.exit_code
    assert "build-locally.py" in capsys.readouterr().err


@pytest.mark.parametrize("name", main.COMMANDS)
def test_each_command_has_a_module_with_a_run_function(name: str) -> None:
    _, command = main.command_parser_and_module(name)
    assert callable(command.run)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EROFS, NotWritable.exit_code),
        (errno.EACCES, NotWritable.exit_code),
        (errno.ENOSPC, DiskFull.exit_code),
        (errno.EFBIG, SystemFault.exit_code),
        (errno.ENOTDIR, SystemFault.exit_code),
    ],
)
def test_an_error_of_the_system_names_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    def refused(_: object) -> int:
        raise OSError(number, os.strerror(number), "/some/file")

    monkeypatch.setattr(main, "dispatch", refused)
    assert main.run(["build"]) == code
    errors = capsys.readouterr().err
    assert "/some/file" in errors
    assert f"why: {os.strerror(number)}" in errors
    assert "try: " in errors


def test_an_error_without_a_file_is_a_bug_in_kiln(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_: object) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(main, "dispatch", wrong)
    with pytest.raises(OSError, match="Bad file descriptor"):
        main.run(["build"])


def test_a_removed_working_directory_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main.run(["matrix"]) == SystemFault.exit_code
    assert "the working directory was removed" in capsys.readouterr().err


def test_the_help_fits_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.run(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert {name for name in main.COMMANDS if any(line.startswith(f"  {name} ") for line in lines)} == set(
        main.COMMANDS
    )


@pytest.mark.processes
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_fault(tmp_path: Path, closed: str) -> None:
    """Their numbers are not those of files that the command opens."""
    feedstock = builders.feedstock(tmp_path, "package:\n  name: a\n  version: '1'\n")
    with Ledger(feedstock.artifacts / "ledger.sqlite") as ledger:
        ledger.end_run(ledger.begin_run(worked_through(["a"])))
    before = (feedstock.artifacts / "ledger.sqlite").read_bytes()
    words = ("sh", "-c", f'exec "$0" -m kiln -C "$1" runs {closed}', sys.executable, str(tmp_path))
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (feedstock.artifacts / "ledger.sqlite").read_bytes() == before


@pytest.mark.processes
@pytest.mark.parametrize(("word", "stream", "code"), [("cache", "stdout", 141), ("bild", "stderr", 2)])
def test_an_output_without_a_reader_ends_a_command_quietly(word: str, stream: str, code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writer}
    ended = subprocess.run((sys.executable, "-m", "kiln", word), cwd=ROOT, check=False, **streams)  # type: ignore[call-overload]
    os.close(writer)
    assert (ended.returncode, ended.stdout or b"", ended.stderr or b"") == (code, b"", b"")
