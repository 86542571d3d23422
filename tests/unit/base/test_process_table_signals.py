"""Signals interrupt this process once, and it ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from kiln.base import process_table

if TYPE_CHECKING:
    from pathlib import Path


def test_sigterm_interrupts_inside_the_block_only() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), process_table.termination_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


pytestmark = pytest.mark.processes

NOHUP = """
import sys
from kiln.base import process_table as signals
try:
    with signals.termination_as_interrupt():
        print("ready", flush=True)
        sys.stdin.read()
except KeyboardInterrupt as interrupt:
    print(interrupt, flush=True)
"""


@pytest.mark.processes
def test_signals_that_were_ignored_at_the_start_stay_ignored() -> None:
    """As nohup does with SIGHUP, and a shell without job control with SIGINT for what it starts by `&`."""
    call = ("bash", "-c", 'trap "" HUP INT; exec "$0" -c "$1"', sys.executable, NOHUP)
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
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
