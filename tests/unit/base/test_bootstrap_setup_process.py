"""A step of the set-up: its output, and that nothing of it is left when it is interrupted."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base import bootstrap

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

pytestmark = pytest.mark.processes
ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def lock(tmp_path: Path) -> int:
    return os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)


def test_output_and_exit_code_are_returned(lock: int) -> None:
    assert bootstrap.run_step_process(["sh", "-c", "echo one; echo two >&2; exit 3"], env=ENV, lock=lock) == (
        3,
        "one\ntwo",
    )


def test_of_an_interrupted_step_nothing_is_left(lock: int) -> None:
    children: list[int] = []

    def interrupt(line: str) -> None:
        children.append(int(line))
        raise KeyboardInterrupt

    script = "sleep 600 >/dev/null 2>&1 & echo $!; wait"
    with pytest.raises(KeyboardInterrupt):
        bootstrap.run_step_process(["sh", "-c", script], env=ENV, lock=lock, on_line=interrupt)
    assert not Path(f"/proc/{children[0]}").exists()


def test_an_interrupt_while_a_step_is_started_ends_it(lock: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes between the start of a process and the knowledge of it must not leave it behind."""
    started: list[subprocess.Popen[str]] = []
    start = bootstrap._start_step_process

    def interrupted(arguments: Sequence[str], env: Mapping[str, str], lock: int) -> subprocess.Popen[str]:
        started.append(start(arguments, env, lock))
        os.kill(os.getpid(), signal.SIGINT)
        return started[0]

    monkeypatch.setattr(bootstrap, "_start_step_process", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            bootstrap.run_step_process(["sleep", "600"], env=ENV, lock=lock)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not Path(f"/proc/{started[0].pid}").exists()
