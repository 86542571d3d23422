"""Processes that a killed build left are found and ended, and nobody else's are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from kiln.base import files, process_table
from kiln.base.process_table import kill_orphans_in_folder, oom_kill_count, parse_proc_stat, process_tree_memory
from kiln.base.system.processes import is_process_running
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

LEADER = """
import subprocess, sys
child = subprocess.Popen(["sleep", "600"], cwd=sys.argv[1])
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_an_orphan_is_killed_and_a_shell_in_its_folder_is_not(tmp_path: Path) -> None:
    build, beside = tmp_path / "build", tmp_path / "other"
    build.mkdir()
    beside.mkdir()
    words = (sys.executable, "-c", LEADER)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen((*words, str(build)), start_new_session=True, text=True, **pipes) as killed,  # type: ignore[call-overload]
        subprocess.Popen(("sleep", "600"), start_new_session=True, cwd=build) as shell,
    ):
        orphan = int(killed.stdout.readline())
        assert kill_orphans_in_folder(build) == (), "whose session's leader lives is at work"
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert kill_orphans_in_folder(beside) == ()
        assert kill_orphans_in_folder(build) == (orphan,)
        assert shell.poll() is None
        shell.kill()


def test_memory_is_that_of_a_process_and_all_below_it() -> None:
    holding = "x = bytearray(b'x' * 50_000_000); print(flush=True); input()"
    before = process_tree_memory(os.getpid())
    with subprocess.Popen((sys.executable, "-c", holding), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert process_tree_memory(child.pid) > 50_000_000
        assert process_tree_memory(os.getpid()) > before + 25_000_000, (
            "what this process itself holds may become less meanwhile"
        )
        child.kill()
    assert process_tree_memory(1 << 30) == 0


@pytest.mark.parametrize(
    ("groups", "counts", "count"),
    [
        ("4:cpu,memory:/a\n0::/\n", {"/sys/fs/cgroup/memory/a/memory.oom_control": "under_oom 0\noom_kill 3\n"}, 3),
        ("0::/user.slice/a\n", {"/sys/fs/cgroup/user.slice/a/memory.events": "oom 9\noom_kill 2\n"}, 2),
        ("0::/a\n", {}, 14),
        ("", {}, 14),
    ],
    ids=["version 1", "version 2", "a group without a count", "no groups"],
)
def test_kills_in_other_control_groups_do_not_count(
    monkeypatch: pytest.MonkeyPatch, groups: str, counts: dict[str, str], count: int
) -> None:
    texts = {"/proc/self/cgroup": groups, "/proc/vmstat": "nr_free 1\noom_kill 14\n", **counts}
    monkeypatch.setattr(files, "text_or_empty", lambda path: texts.get(str(path), ""))
    assert oom_kill_count() == count


def test_a_process_is_parsed_whatever_its_name() -> None:
    stat = "42 (a) (b) S 7 42 42 0 -1 4194304 100 0 0 0 250 50 100 0 20 0 1 0 12345 0 0"
    process = parse_proc_stat(stat)
    assert (process.pid, process.parent, process.name, process.state) == (42, 7, "a) (b", "S")
    assert process.busy == pytest.approx(400 / os.sysconf("SC_CLK_TCK"))


def test_an_incomplete_record_is_refused() -> None:
    with pytest.raises((ValueError, IndexError)):
        parse_proc_stat("42 (a) S 7 42")


def test_a_child_is_among_the_descendants_until_it_has_ended() -> None:
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as child:
        assert child.pid in {process.pid for process in process_table.processes_with_descendants(os.getpid())}
        assert is_process_running(child.pid)
        assert child.pid in process_table.child_pids(os.getpid())
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_process_running(child.pid), "a zombie has ended"
    assert process_table.read_process(child.pid) is None
    assert process_table.child_pids(child.pid) == ()


def test_descendants_are_killed_and_the_process_is_not() -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen((sys.executable, "-c", script), **pipes) as parent:  # type: ignore[call-overload]
        child = int(parent.stdout.readline())
        process_table.kill_descendants(parent.pid)
        while is_process_running(child):
            pass
        assert is_process_running(parent.pid)
        parent.kill()


def test_the_environment_of_a_process_is_that_of_its_start() -> None:
    environment = {**os.environ, "KILN_TEST_MARK": "one"}
    with subprocess.Popen((sys.executable, "-c", "input()"), env=environment, stdin=subprocess.PIPE) as child:
        # The parent goes on when the descriptors are closed, a moment before the kernel sets the environment.
        until(
            lambda: b"KILN_TEST_MARK=one" in process_table.environment_of_process(child.pid), "the environment is there"
        )
    assert process_table.environment_of_process(child.pid) == ()


def test_sigterm_interrupts_inside_the_block_only() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), process_table.termination_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


# It waits in steps: a signal that comes just before a call that blocks is handled when the call has returned.
NOHUP = """
import time
from kiln.base import process_table as signals
try:
    with signals.termination_as_interrupt():
        print("ready", flush=True)
        for _ in range(600):
            time.sleep(0.1)
except KeyboardInterrupt as interrupt:
    print(interrupt, flush=True)
"""


@pytest.mark.processes
def test_signals_that_were_ignored_at_the_start_stay_ignored() -> None:
    """As nohup does with SIGHUP, and a shell without job control with SIGINT for what it starts by `&`."""
    call = ("bash", "-c", 'trap "" HUP INT; exec "$0" -c "$1"', sys.executable, NOHUP)
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        assert process.stdout.readline() == "SIGTERM\n"
    assert process.returncode == 0


def test_outside_the_main_thread_handlers_are_unchanged() -> None:
    outcome: list[str] = []

    def work() -> None:
        with process_table.termination_as_interrupt():
            outcome.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert outcome == ["done"]


ORPHANED = """
import os, sys, signal
from kiln.base.process_table import die_with_parent
parent = os.getppid()
print(flush=True)
sys.stdin.read()  # until the parent's end of the pipe is closed, with the parent
while os.getppid() == parent:
    pass
die_with_parent(signal.SIGTERM, parent=parent)
open(sys.argv[1], "w").close()
"""

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], stdin=subprocess.PIPE)
sys.stdin.read()
"""


def test_a_process_ends_if_its_parent_was_killed_while_it_started(tmp_path: Path) -> None:
    words = (sys.executable, "-c", PARENT, ORPHANED, str(tmp_path / "went-on"))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        parent.kill()
        assert parent.stdout.read() == b"", "the orphan has closed its end of the pipe"
    assert not (tmp_path / "went-on").exists()


def test_two_signals_in_quick_succession_count_as_one() -> None:
    """The second one would otherwise interrupt the clean-up that the first has started."""
    began = ended = 0
    with process_table.termination_as_interrupt():
        try:
            began += 1
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGTERM)
            ended += 1
    assert (began, ended) == (1, 1)
