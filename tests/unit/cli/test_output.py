"""A run is shown as its surroundings allow."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kiln.cli.output import append_job_summary, run_view_for_stream, terminal_loss_tolerant_view, terminal_width
from kiln.run.view.lines import GitHubView, PlainView
from kiln.run.view.live import LiveView
from kiln.state.results import ConfigState
from tests import runs

if TYPE_CHECKING:
    from pathlib import Path


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class LatinTerminal(Terminal):
    """One that lacks the signs of the live view."""

    encoding = "iso8859-1"


@pytest.mark.parametrize(
    ("stream", "environment", "kind"),
    [
        (Terminal(), {"TERM": "xterm"}, LiveView),
        (Terminal(), {"TERM": "dumb"}, PlainView),
        (Terminal(), {}, PlainView),
        (io.StringIO(), {"TERM": "xterm"}, PlainView),
        (io.StringIO(), {"GITHUB_ACTIONS": "true"}, GitHubView),
        (io.StringIO(), {"GITHUB_ACTIONS": "false"}, PlainView),
        (LatinTerminal(), {"TERM": "xterm"}, PlainView),
    ],
)
def test_the_view_fits_its_surroundings(stream: io.StringIO, environment: dict[str, str], kind: type) -> None:
    assert type(run_view_for_stream(stream, environment, {})) is kind


@pytest.mark.parametrize("verbosity", ["quiet", "verbose"])
def test_more_or_less_text_is_asked_for_in_lines_also_on_a_terminal(verbosity: str) -> None:
    shown = run_view_for_stream(Terminal(), {"TERM": "xterm", "GITHUB_ACTIONS": "true"}, {}, verbosity=verbosity)
    assert isinstance(shown, PlainView)
    assert shown._verbosity.value == verbosity


@pytest.mark.parametrize("value", ["1", "true", "0"])
def test_no_color_takes_the_colors_from_the_live_view(value: str) -> None:
    texts = {}
    for environment in ({"TERM": "xterm"}, {"TERM": "xterm", "NO_COLOR": value}, {"TERM": "xterm", "NO_COLOR": ""}):
        shown = run_view_for_stream(stream := Terminal(), environment, {})
        with shown:
            report = runs.worked_through(["a", "b"], bad={1: ConfigState.FAILED})
            shown.run_began(report)
            shown.run_ended(report)
        texts[environment.get("NO_COLOR")] = re.findall(r"\x1b\[[0-9;]*m", stream.getvalue())
    assert texts[value] == []
    assert texts[None]
    assert texts[""]


def test_the_table_is_added_to_what_the_job_has_said_already(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n\n")
    variants = runs.variants(("None",), ("3.10",))
    append_job_summary(runs.worked_through(variants), variants, {"GITHUB_STEP_SUMMARY": str(summary)})
    assert summary.read_text().startswith("before\n\n### run 7: 1 done in ")
    append_job_summary(runs.worked_through(variants), variants, {})


def test_lines_are_folded_for_a_terminal_alone(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        assert terminal_width(file) is None
    assert terminal_width(file) is None, "a closed one"
    assert terminal_width(io.StringIO()) is None
    main, side = os.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(main), os.fdopen(side, "w") as terminal:
        assert terminal_width(terminal) == 80


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
