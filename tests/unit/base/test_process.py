"""Processes: what is said about them, how they are bounded, and that none stays behind."""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING

import pytest

from kiln.base import process
from kiln.base.errors import MissingTool
from kiln.base.system.processes import PipeReader, is_process_running
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.processes

ENV = {"PATH": "/usr/bin:/bin"}


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


def test_output_and_errors_come_in_order_with_the_exit_code() -> None:
    result = process.run(["sh", "-c", "echo one; echo two >&2; printf three; exit 7"], env=ENV)
    assert (result.exit_code, result.tail, result.ok) == (7, "one\ntwo\nthree", False)
    assert result.seconds < 60


def test_a_signal_gives_a_negative_exit_code() -> None:
    assert process.run(["sh", "-c", "kill -9 $$"], env=ENV).exit_code == -signal.SIGKILL


def test_the_program_has_exactly_the_given_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_OUTSIDE", "seen")
    result = process.capture(["env"], env={**ENV, "KILN_INSIDE": "given"})
    names = {line.partition("=")[0] for line in result.stdout.splitlines()}
    assert "KILN_INSIDE" in names
    assert "KILN_OUTSIDE" not in names


def test_the_program_is_looked_up_on_the_given_path(tmp_path: Path) -> None:
    program = tmp_path / "kiln-says"
    program.write_text("#!/bin/sh\necho from here\n")
    program.chmod(0o755)
    assert process.run(["kiln-says"], env={"PATH": str(tmp_path)}).tail == "from here"


def test_a_file_that_cannot_be_run_is_a_missing_tool(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("text")
    with pytest.raises(MissingTool) as caught:
        process.run([tmp_path / "plain"], env=ENV)
    assert "Permission denied" in str(caught.value)


def test_a_missing_folder_is_not_reported_as_a_missing_program(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="nowhere"):
        process.run(["true"], env=ENV, cwd=tmp_path / "nowhere")


def test_the_command_is_logged_before_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="kiln.base.process")
    seen: list[int] = []
    process.run(["sh", "-c", "echo 'a b'"], env=ENV, on_line=lambda _: seen.append(len(caplog.messages)))
    assert seen == [1]
    assert caplog.messages == ["""run: sh -c 'echo '"'"'a b'"'"''"""]


def test_the_log_file_is_appended_to(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "build.log"
    process.run(["echo", "first"], env=ENV, log=log)
    process.run(["echo", "second"], env=ENV, log=log)
    lines = log.read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["$ echo first", "first", "$ echo second", "second"]
    assert [line for line in lines if line.startswith("# exit code 0 after")] == [lines[2], lines[5]]


def test_the_tail_is_bounded_and_the_log_is_not(tmp_path: Path) -> None:
    log = tmp_path / "log"
    result = process.run(["seq", "1000"], env=ENV, log=log, tail_lines=2)
    assert result.tail == "999\n1000"
    assert log.read_text().splitlines()[1:-1] == [str(number) for number in range(1, 1001)]


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    result = process.run(["head", "-c", "1000000", "/dev/zero"], env=ENV, tail_lines=2)
    assert 0 < len(result.tail) < 300_000


def test_secrets_are_blotted_out_everywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="kiln.base.process")
    log = tmp_path / "log"
    lines: list[str] = []
    words = ["echo", "https://user:hunter2@index.invalid/simple", "token=letmein"]
    result = process.run(words, env=ENV, log=log, secrets=["letmein", ""], on_line=lines.append)
    for text in (log.read_text(), result.tail, *caplog.messages, *lines):
        assert "hunter2" not in text
        assert "letmein" not in text
        assert "https://***@index.invalid/simple" in text


def test_capture_keeps_the_answer_apart_from_the_errors() -> None:
    result = process.capture(["sh", "-c", "printf 'a\\nb'; echo wrong >&2"], env=ENV)
    assert (result.stdout, result.tail) == ("a\nb", "wrong")


def test_capture_takes_much_on_both_pipes_without_blocking() -> None:
    code = "import sys; sys.stderr.write('e' * 300000); sys.stdout.write('o' * 300000)"
    assert len(process.capture(python(code), env=ENV, timeout=60).stdout) == 300_000


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the time run out at a program's first line: by then it runs, however slowly it has started."""
    clock = [0.0]
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return lambda _: clock.__setitem__(0, 2.0)


def test_what_does_not_end_in_time_is_ended_with_its_children(late: Callable[[str], None]) -> None:
    result = process.run(["sh", "-c", "sleep 600 & echo $!; wait"], env=ENV, timeout=1, on_line=late)
    assert result.exit_code == process.TIMED_OUT
    until(lambda: not is_process_running(int(result.tail)), "the child ends")


def test_what_will_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch, late: Callable[[str], None]) -> None:
    monkeypatch.setattr(process, "GRACE", 0.2)
    result = process.run(["sh", "-c", "trap '' TERM; echo deaf; sleep 600"], env=ENV, timeout=1, on_line=late)
    assert (result.exit_code, result.tail) == (process.TIMED_OUT, "deaf")


def test_a_child_in_the_background_does_not_delay_the_result() -> None:
    result = process.run(["sh", "-c", "sleep 60 & echo $!"], env=ENV)
    with suppress(ProcessLookupError):
        os.kill(int(result.tail), signal.SIGKILL)
    assert result.ok
    assert result.seconds < 30


def test_lines_between_a_read_and_the_end_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read finds nothing, then the program prints its last line and ends: as on a machine with too much to do."""
    ready = PipeReader.read_available
    reads: list[float] = []

    def late(reader: PipeReader, timeout: float) -> list[tuple[IO[bytes], bytes]]:
        reads.append(timeout)
        if len(reads) == 1:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            return []
        return ready(reader, timeout)

    monkeypatch.setattr(PipeReader, "read_available", late)
    assert process.run(("sh", "-c", "echo the last line"), env=os.environ).tail == "the last line"


def test_an_interruption_ends_the_whole_group(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        process.run(["sh", "-c", "sleep 600 & echo $!; wait"], env=ENV, on_line=interrupt)
    until(lambda: not is_process_running(pids[0]), "the child ends")


DEBIAN = {"PRETTY_NAME": "Debian GNU/Linux forky/sid", "ID": "debian"}

MINT = {"NAME": "Linux Mint", "ID": "linuxmint", "ID_LIKE": "ubuntu debian"}

ROCKY = {"ID": "rocky", "ID_LIKE": "rhel centos fedora"}


@pytest.mark.parametrize(
    ("release", "platform", "hint"),
    [
        (DEBIAN, "linux", "sudo apt install openssh-client"),
        (MINT, "linux", "sudo apt install openssh-client"),
        ({"ID": "fedora"}, "linux", "sudo dnf install openssh"),
        (ROCKY, "linux", "sudo dnf install openssh"),
        ({}, "darwin", "brew install openssh"),
        ({"ID": "arch"}, "linux", "install it with this system's package manager (Debian's package is openssh-client)"),
        ({}, "linux", "install it with this system's package manager (Debian's package is openssh-client)"),
    ],
)
def test_the_command_is_that_of_the_system(release: dict[str, str], platform: str, hint: str) -> None:
    assert process.installation_advice("ssh-keygen", release, platform) == hint


def test_a_program_without_a_known_package_has_no_advice() -> None:
    assert process.installation_advice("no-such-program", {"ID": "debian"}, "linux") == ""
    assert process.system_package_of_program("no-such-program") == ""


@pytest.mark.processes
def test_a_missing_program_is_named_with_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "os_release", lambda: {"ID": "debian"})
    for program in ("rsync", f"{tmp_path}/rsync"):
        with pytest.raises(MissingTool, match="rsync") as caught:
            process.run([program], env={"PATH": str(tmp_path)})
        assert caught.value.hint == "sudo apt install rsync"
