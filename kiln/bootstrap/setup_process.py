"""One step of the set-up: a program that runs to its end, or is killed with all of its child processes."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from kiln.operating_system import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

TAIL_LINES = 60


def run_step_process(
    arguments: Sequence[str], *, env: Mapping[str, str], lock: int, on_line: Callable[[str], None] = lambda _: None
) -> tuple[int, str]:
    """Run a step; return its exit code and the end of its output.

    The step also holds the open file ``lock``: if this process is killed, the next run waits for the step to end. If it
    is interrupted, the step and its children have ended when this returns, because their folder is emptied then.
    """
    lines: deque[str] = deque(maxlen=TAIL_LINES)
    with processes.adopt_orphans(), ExitStack() as cleanup:
        with _deferred_interrupt():  # else nothing would end a process that is being started
            process = _start_step_process(arguments, env, lock)
            cleanup.callback(_kill_step_and_children, process, processes.ProcessGroup(process))
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            on_line(line.rstrip())
        return process.wait(), "\n".join(lines)


def _start_step_process(arguments: Sequence[str], env: Mapping[str, str], lock: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        **processes.inherited_file_arguments(lock),
        **processes.new_group_arguments(),  # which can be killed as a whole
        encoding="utf-8",
        errors="replace",
    )


@contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block, unless it is ignored or this is not the main thread."""
    before = signal.getsignal(signal.SIGINT)
    if before in {signal.SIG_IGN, None} or threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def record_interrupt(number: int, _frame: FrameType | None) -> None:
        pending.append(number)

    signal.signal(signal.SIGINT, record_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pending:
            signal.raise_signal(signal.SIGINT)


def _kill_step_and_children(process: subprocess.Popen[str], group: processes.ProcessGroup) -> None:
    """Kill a running step with all of its child processes, wait until the last of them has ended, close its pipe."""
    if process.returncode is None:
        group.kill()
        process.wait()
        processes.wait_for_group(process)
    group.close()
    if process.stdout is not None:
        process.stdout.close()
