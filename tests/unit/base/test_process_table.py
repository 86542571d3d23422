"""Processes that a killed build left are found and ended, and nobody else's are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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


def test_the_kernels_count_is_a_number() -> None:
    assert oom_kill_count() >= 0


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
        assert process_table.has_children(os.getpid())
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_process_running(child.pid), "a zombie has ended"
    assert process_table.read_process(child.pid) is None


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
