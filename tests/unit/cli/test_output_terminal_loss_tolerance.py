"""A run whose terminal is closed: it goes on, without its view."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kiln.cli.output import terminal_loss_tolerant_view

RUN = """
import signal, sys
from kiln.base import process_table as signals
from kiln.cli import output as terminal_loss_tolerance
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the caller of the tests may ignore it, as nohup does
with signals.termination_as_interrupt(), terminal_loss_tolerance.survive_hangup():
    print("ready", flush=True)
    for line in open(sys.argv[1]):
        sys.stderr.write(line)
        sys.stderr.flush()
open(sys.argv[2], "w").write("went on")
"""


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals of this kind")
def test_a_run_goes_on_when_its_terminal_is_closed(tmp_path: Any) -> None:
    controller, terminal = os.openpty()
    fifo, done = tmp_path / "fifo", tmp_path / "done"
    os.mkfifo(fifo)
    call = (sys.executable, "-c", RUN, str(fifo), str(done))
    with subprocess.Popen(call, stdin=terminal, stdout=subprocess.PIPE, stderr=terminal, text=True) as process:
        os.close(terminal)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with fifo.open("w") as lines:
            os.close(controller)
            process.send_signal(signal.SIGHUP)
            lines.write("a line of the view\n")
    assert process.returncode == 0
    assert done.read_text() == "went on"


class View:
    """A view whose output is gone."""

    def __init__(self, fault: OSError) -> None:
        self.fault = fault
        self.calls = 0

    def output_line_received(self, *_: object) -> None:
        self.calls += 1
        raise self.fault


def test_a_view_that_cannot_write_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    silenced: list[list[int]] = []
    monkeypatch.setattr("kiln.cli.output.redirect_to_dev_null", silenced.append)
    for number in (errno.EIO, errno.EPIPE):
        view = View(OSError(number, "gone"))
        observer = terminal_loss_tolerant_view(view)  # type: ignore[arg-type]
        for _ in range(2):
            observer.output_line_received("a", "b", "c")
        assert view.calls == 1
    assert silenced == [[2], [2]]


def test_another_error_of_a_view_is_not_hidden() -> None:
    view: Any = SimpleNamespace(run_ended=lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        terminal_loss_tolerant_view(view).run_ended(None)  # type: ignore[arg-type]
