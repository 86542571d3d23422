"""The program on a controller: what the run's key allows, and how settings are written there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.playbook_programs import CONTROLLER_PROGRAMS, load

ROOT = Path(__file__).parents[4]
PROGRAM = f"{CONTROLLER_PROGRAMS}/kiln-controller"


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ("--server --sender -tre.iLsfxCIvu --timeout=120 . export/", True),
        ("--server --sender -tre.LsfxCIvu --partial . export/", True),
        ("--server -tre.iLsfxCIvu . export/", False),  # it would receive
        ("--server --sender -tre.iLsfxCIvu . /etc/", False),
        ("--server --sender -tre.iLsfxCIvu . export/ /etc/", False),
        ("--server --sender -tre.iLsfxCIvu . ../", False),
        ("--server --sender -tsre.iLsfxCIvu . export/", False),  # -s: further arguments from its input
        ("--server --sender -tLre.iLsfxCIvu . export/", False),  # -L: what links point to
        ("--server --sender -tre.iLsfxCIvu --log-file=/var/lib/kiln/.ssh/rc . export/", False),
        ("--server --sender -tre.iLsfxCIvu --remove-source-files . export/", False),
    ],
)
def test_rsync_may_send_the_folder_of_results_and_nothing_else(words: str, allowed: bool) -> None:
    assert load(PROGRAM).may_send(words.split(" ")) is allowed


@pytest.mark.parametrize(
    "request_", ["", "sh", "state; id", "$(id)", "collected", "rsync --server . /", "install", "keep"]
)
def test_a_request_that_is_none_of_the_keys_is_refused(
    request_: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = load(PROGRAM)
    program.ENDED, program.STOP, program.COLLECTED = (tmp_path / name for name in ("ended", "stop", "collected"))
    monkeypatch.setenv("SSH_ORIGINAL_COMMAND", request_)
    with pytest.raises(SystemExit):
        program.gate()
    assert "does not allow" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_goes_on_can_be_stopped_and_one_that_is_over_collected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = load(PROGRAM)
    program.ENDED, program.STOP, program.COLLECTED = (tmp_path / name for name in ("ended", "stop", "collected"))
    program.FOLDER = tmp_path
    monkeypatch.setenv("SSH_ORIGINAL_COMMAND", "stop")
    program.gate()
    assert program.STOP.exists()
    program.ENDED.write_text('{"exit_code": 0, "ended": 1.0}')
    monkeypatch.setenv("SSH_ORIGINAL_COMMAND", "collected")
    assert program.is_over(1e12) is False
    assert program.is_over(1.0) is True, "nobody came in time"
    program.gate()
    assert program.is_over(1e12) is True


SENDER = """
import sys
from pathlib import Path
from tests.playbook_programs import load
program = load(sys.argv[1])
program.FOLDER = Path(sys.argv[2])
program.gate()
"""


@pytest.mark.processes
def test_the_machine_stays_until_all_that_fetch_the_results_have_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lock is that of the program which becomes rsync, here one that sends until its input ends."""
    program = load(PROGRAM)
    program.FOLDER = tmp_path
    program.ENDED, program.STOP, program.COLLECTED = (tmp_path / name for name in ("ended", "stop", "collected"))
    program.ENDED.write_text('{"exit_code": 0, "ended": 1.0}')
    rsync = tmp_path / "bin" / "rsync"
    rsync.parent.mkdir()
    rsync.write_text("#!/bin/sh\necho sending\nread line\n")
    rsync.chmod(0o755)
    request = "rsync --server --sender -tre.iLsfxCIvu --timeout=120 . export/"
    environment = {"PATH": f"{rsync.parent}:/usr/bin:/bin", "SSH_ORIGINAL_COMMAND": request}
    words = [sys.executable, "-c", SENDER, PROGRAM, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, cwd=ROOT, env=environment, text=True) as sender:
        assert sender.stdout is not None
        assert sender.stdout.readline() == "sending\n"
        monkeypatch.setenv("SSH_ORIGINAL_COMMAND", "collected")
        program.gate()
        assert json.loads(capsys.readouterr().out) == {"waits": True}
        assert program.is_over(1e12) is False, "another one still fetches"
        assert program.is_over(1.0) is True, "at the end of the time for it, it is cut off"
        sender.communicate("\n")
    program.gate()
    assert json.loads(capsys.readouterr().out) == {"waits": False}
    assert program.is_over(1e12) is True


@pytest.mark.processes
@pytest.mark.parametrize("text", ["plain", 'a "b" \\ c', "$HOME `id` $(id)", "tab\tand 'quotes'"])
def test_a_variable_is_quoted_as_systemd_and_a_shell_read_it(text: str) -> None:
    """systemd.exec(5): double quotes as in a POSIX shell."""
    words = ("sh", "-c", f'X={load(PROGRAM).quoted(text)}; printf %s "$X"')
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == text


def test_files_are_written_for_their_reader_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(PROGRAM)
    owners: list[tuple[str, str]] = []
    monkeypatch.setattr(program.shutil, "chown", lambda path, user, _: owners.append((Path(path).name, user)))
    (tmp_path / "secret").symlink_to(tmp_path / "elsewhere")
    program.write(tmp_path / "secret", "x", user="root")
    assert (tmp_path / "secret").read_text() == "x"
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert owners == [(".secret.new", "root")]
