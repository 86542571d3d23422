"""Processes that a killed build left are found and ended, and nobody else's are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kiln.pipeline.process import end_orphans, held_memory, memory_kills

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

LEADER = """
import subprocess, sys
child = subprocess.Popen(["sleep", "600"], cwd=sys.argv[1])
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_an_orphan_is_ended_and_a_shell_beside_it_is_not(tmp_path: Path) -> None:
    build, beside = tmp_path / "build", tmp_path / "beside"
    build.mkdir()
    beside.mkdir()
    words = (sys.executable, "-c", LEADER)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen((*words, str(build)), start_new_session=True, text=True, **pipes) as killed,  # type: ignore[call-overload]
        subprocess.Popen(("sleep", "600"), start_new_session=True, cwd=build) as shell,
    ):
        orphan = int(killed.stdout.readline())
        assert end_orphans(build) == (), "whose session's leader lives is at work"
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert end_orphans(beside) == ()
        assert end_orphans(build) == (orphan,)
        assert shell.poll() is None
        shell.kill()


def test_memory_is_that_of_a_process_and_all_below_it() -> None:
    holding = "x = bytearray(b'x' * 50_000_000); print(flush=True); input()"
    before = held_memory(os.getpid())
    with subprocess.Popen((sys.executable, "-c", holding), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert held_memory(child.pid) > 50_000_000
        assert held_memory(os.getpid()) > before + 25_000_000, (
            "what this process itself holds may become less meanwhile"
        )
        child.kill()
    assert held_memory(1 << 30) == 0


def test_the_kernels_count_is_a_number() -> None:
    assert memory_kills() >= 0
