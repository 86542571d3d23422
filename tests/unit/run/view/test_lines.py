"""The views of a run on a terminal, as plain lines, and in GitHub Actions."""

from __future__ import annotations

import dataclasses
import io
import re
import threading
import time
from typing import TYPE_CHECKING

import pytest

from kiln.run.view.lines import GitHubView, PlainView, Verbosity, failure_blocks
from kiln.run.view.live import LiveView
from kiln.run.view.state import RunState
from kiln.state.results import ConfigRun, ConfigState, MatrixReport, RunCost, StepReport
from tests.unit.run.view.run import BEGAN, LOG, a_config, a_run

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.state.results import RunObserver


def play(view: RunObserver, *, lines: int = 3, jobs: int = 2) -> None:
    """Show a run of two configs, one of which fails, in a view."""
    waiting = (a_config("a", ConfigState.WAITING), a_config("b", ConfigState.WAITING))
    ended = (a_config("a", ConfigState.DONE), a_config("b", ConfigState.FAILED, reason="exit code 1", log=LOG))
    view.run_began(a_run(*waiting, jobs=jobs))
    for config, after in zip("ab", ended, strict=True):
        view.config_changed(a_config(config, ConfigState.RUNNING))
        view.output_line_received(config, "compile", "")
        for number in range(lines):
            view.output_line_received(config, "compile", f"{config}: line {number}")
        view.config_changed(after)
    view.run_ended(a_run(*ended, jobs=jobs, finished=BEGAN + 300))


def without_times(stream: io.StringIO) -> list[str]:
    return re.sub(r"(?m)^\d\d:\d\d:\d\d ", "", stream.getvalue()).splitlines()


def test_plain_lines_show_states_and_steps_and_output_of_failures_alone() -> None:
    stream = io.StringIO()
    play(PlainView(stream, labels={"a": "CPU · Python 3.10"}))
    assert without_times(stream) == [
        "run 7: 2 waiting; 2 in parallel",
        "▸ CPU · Python 3.10: running",
        "▸ CPU · Python 3.10: compile",
        "✓ CPU · Python 3.10: done after 2 min 00 s",
        "▸ b: running",
        "▸ b: compile",
        "✗ b: failed after 2 min 00 s (exit code 1)",
        "",
        "✗ b: failed",
        "  exit code 1",
        "    | b: line 0",
        "    | b: line 1",
        "    | b: line 2",
        f"  log: {LOG}",
        "",
        "run 7 ended: 1 failed, 1 done",
    ]


def test_a_quiet_view_prints_failures_and_the_total_alone() -> None:
    stream = io.StringIO()
    play(PlainView(stream, verbosity=Verbosity.QUIET), lines=1)
    assert without_times(stream) == [
        "",
        "✗ b: failed",
        "  exit code 1",
        "    | b: line 0",
        f"  log: {LOG}",
        "",
        "run 7 ended: 1 failed, 1 done",
    ]


def test_a_verbose_view_prints_the_output_with_its_indentation_and_without_escapes() -> None:
    stream = io.StringIO()
    view = PlainView(stream, labels={"a": "CPU"}, verbosity=Verbosity.VERBOSE)
    play(view, lines=1)
    view.output_line_received("a", "compile", "    \x1b[31mindented\x1b[0m\r")
    lines = without_times(stream)
    assert lines[1:5] == ["▸ CPU: running", "▸ CPU: compile", "  CPU | a: line 0", "✓ CPU: done after 2 min 00 s"]
    assert lines[-1] == "  CPU |     indented"


def test_an_unchanged_state_is_not_printed_again() -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    view.run_began(a_run(a_config("a", ConfigState.RUNNING)))
    before = stream.getvalue()
    view.config_changed(a_config("a", ConfigState.RUNNING, peak_memory=5))
    assert stream.getvalue() == before


COST = RunCost(spent=0.0, expected=16.2, currency="USD", end=BEGAN + 7200, config_ends={"a": BEGAN + 7200})


@pytest.mark.parametrize("view", [PlainView, GitHubView])
def test_the_cost_of_a_run_on_workers_is_in_its_last_line(view: type[PlainView | GitHubView]) -> None:
    stream = io.StringIO()
    shown = PlainView(stream, now=lambda: BEGAN) if view is PlainView else view(stream)
    shown.run_began(a_run(a_config("a", ConfigState.RUNNING)))
    for spent in (0.0, 0.1, 1.7, 1.8):
        shown.run_cost_changed(dataclasses.replace(COST, spent=spent))
    final = dataclasses.replace(COST, spent=16.2, config_ends={})
    shown.run_cost_changed(final)
    shown.run_ended(dataclasses.replace(a_run(a_config("a", ConfigState.DONE)), cost=final))
    assert stream.getvalue().endswith("run 7 ended: 1 done; 16.20 USD\n")
    if view is PlainView:
        costs = re.findall(r"cost: (.+), the end at about \d\d:\d\d", stream.getvalue())
        assert costs == ["0.00 of about 16.20 USD", "1.70 of about 16.20 USD"], "a line for each tenth"


def test_plain_lines_say_when_configs_and_the_end_are_expected_and_when_that_differs_by_much() -> None:
    stream = io.StringIO()
    view = PlainView(stream, now=lambda: BEGAN)
    view.run_began(a_run(a_config("a", ConfigState.WAITING), a_config("b", ConfigState.WAITING)))
    free = dataclasses.replace(
        COST, expected=0.0, config_ends={"a": BEGAN + 60, "b": BEGAN + 7200}, config_starts={"b": BEGAN + 60}
    )
    for shift in (0.0, 600.0, 1200.0, 1300.0, -60.0):
        view.run_cost_changed(dataclasses.replace(free, end=BEGAN + 7200 + shift))
    view.config_changed(a_config("b", ConfigState.RUNNING, estimate=60.0, started=BEGAN + 600))
    first, later, earlier, begun = (line.split(" ", 1)[1] for line in stream.getvalue().splitlines()[1:])
    begin, own, end = (time.strftime("%H:%M", time.localtime(BEGAN + seconds)) for seconds in (60, 660, 7200))
    assert first == f"the end at about {end}; 1 wait, to start from {begin} to {begin}"
    assert re.fullmatch(r"the end is now expected at about \d\d:\d\d, 20 min 00 s later than before", later)
    assert earlier.endswith(", 21 min 00 s earlier than before")
    assert begun == f"▸ b: running, about 1 min 00 s, until {own}", "the forecast is from before it began"


def runner(output: str) -> list[str]:
    """Return the commands that GitHub's runner would execute."""
    commands, stopped = [], None
    for line in output.splitlines():
        if stopped:
            stopped = None if line == f"::{stopped}::" else stopped
        elif line.startswith("::") or "##[" in line:
            commands.append(line)
            stopped = line.removeprefix("::stop-commands::") if line.startswith("::stop-commands::") else None
    return [re.sub(r"(?<=::stop-commands::).*", "…", line) for line in commands]


def test_github_gets_a_fold_for_each_step_and_an_annotation_for_a_failure() -> None:
    stream = io.StringIO()
    with GitHubView(stream) as view:
        play(view, jobs=1)
    reason = f"  exit code 1%0A    | b: line 0%0A    | b: line 1%0A    | b: line 2%0A  log: {LOG}"
    fold = ["::group::compile", "::stop-commands::…", "::endgroup::"]
    assert runner(stream.getvalue()) == [*fold, *fold, f"::error title=✗ b%3A failed::{reason}"]
    assert "b: line 2" in stream.getvalue()


def test_github_gets_a_fold_for_each_config_when_configs_run_in_parallel() -> None:
    stream = io.StringIO()
    with GitHubView(stream) as view:
        play(view, jobs=2)
    assert [line for line in runner(stream.getvalue()) if "group::" in line and "end" not in line] == [
        "::group::✓ a: done after 2 min 00 s",
        "::group::✗ b: failed after 2 min 00 s (exit code 1)",
    ]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_build_cannot_send_commands_to_githubs_runner(jobs: int) -> None:
    evil = "::set-env name=PATH::/evil"
    stream = io.StringIO()
    with GitHubView(stream) as view:
        view.run_began(a_run(a_config("a", ConfigState.RUNNING), a_config("b", ConfigState.WAITING), jobs=jobs))
        for line in (evil, "##[add-path]/evil", "::stop-commands::", "::endgroup::"):
            view.output_line_received("a", f"step\n{evil}", line)
        bad = a_config("a", ConfigState.FAILED, reason=f"{evil}\n{evil}\n##[add-path]/evil")
        view.config_changed(bad)
        view.run_ended(a_run(bad, jobs=jobs))
    allowed = ("::group::", "::endgroup::", "::stop-commands::…", "::error title=")
    assert all(line.startswith(allowed) for line in runner(stream.getvalue()))


class Terminal:
    """A terminal that is ``columns`` wide and understands what the live view writes."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows = [""]
        self.row = self.column = 0

    def write(self, text: str) -> None:
        for part in re.findall(r"\x1b\[\??[\d;]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", text):
            here = self.rows[self.row]
            if part == "\n":
                self.row, self.column = self.row + 1, 0
                self.rows += [""] * (self.row + 1 - len(self.rows))
            elif part == "\r":
                self.column = 0
            elif part == "\x1b[J":
                self.rows[self.row :] = [here[: self.column]]
            elif part == "\x1b[K":
                self.rows[self.row] = here[: self.column]
            elif part.startswith("\x1b[") and part.endswith("A"):
                self.row -= int(part[2:-1])
                assert self.row >= 0
            elif not part.startswith("\x1b"):
                self.rows[self.row] = here[: self.column] + part + here[self.column + len(part) :]
                self.column += len(part)

    def narrow(self, columns: int) -> None:
        """Wrap what is there, as terminals do."""
        wrapped = [row[at : at + columns] for row in self.rows for at in range(0, max(1, len(row)), columns)]
        self.rows, self.row, self.columns = wrapped, len(wrapped) - 1, columns


def test_the_live_view_draws_in_place_and_restores_the_terminal() -> None:
    stream = io.StringIO()
    with LiveView(stream, size=lambda: (80, 24), now=lambda: BEGAN + 60) as view:
        play(view)
    terminal = Terminal(80)
    terminal.write(stream.getvalue())
    rows = [row for row in terminal.rows if row]
    assert rows[0].startswith("1 of 2 done, 1 failed")
    assert sum(row.startswith("✓ a") for row in rows) == 1
    assert "  exit code 1" in rows
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")


def test_a_narrower_terminal_is_redrawn_without_remains() -> None:
    columns = 100
    stream = io.StringIO()
    view = LiveView(stream, size=lambda: (columns, 24), now=lambda: BEGAN + 60)
    view._state.set_report(a_run(*(a_config(f"a-rather-long-name-{n}", ConfigState.RUNNING) for n in range(4))))
    view.draw_frame()
    terminal = Terminal(columns)
    terminal.write(stream.getvalue())
    columns = 37
    terminal.narrow(columns)
    stream.truncate(0)
    view.draw_frame()
    terminal.write(stream.getvalue().lstrip("\0"))
    assert len(terminal.rows) == 1 + 2 + 4
    assert all(len(row) < columns for row in terminal.rows)


def test_an_unchanged_frame_is_not_written_again() -> None:
    stream = io.StringIO()
    view = LiveView(stream, size=lambda: (80, 24), now=lambda: BEGAN)
    view._state.set_report(a_run(a_config("a", ConfigState.WAITING)))
    view.draw_frame()
    before = stream.getvalue()
    view.draw_frame()
    assert stream.getvalue() == before


def test_an_interrupted_run_leaves_no_thread_and_a_visible_cursor() -> None:
    stream = io.StringIO()

    def broken(report: MatrixReport, config: ConfigRun) -> None:
        with LiveView(stream, size=lambda: (80, 24)) as view:
            view.run_began(report)
            view.config_changed(config)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken(a_run(a_config("a", ConfigState.WAITING)), a_config("a", ConfigState.RUNNING))
    assert "live view" not in {thread.name for thread in threading.enumerate()}
    assert stream.getvalue().endswith("\x1b[?25h")


def test_a_failure_has_the_line_of_its_cause_and_of_many_failures_each_has_one_line(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("2026-01-01 00:00:00 === compile\n2026-01-01 00:00:01 a.c:1: error: no\n")
    steps = (StepReport(title="compile", seconds=1.0, failed=True),)
    configs = [a_config(name, ConfigState.FAILED, reason="ended", log=log, steps=steps) for name in "abcdef"]
    state = RunState()
    state.set_report(a_run(*configs))
    first, *others = failure_blocks(state)
    assert first == ["", "✗ a: failed", "  ended", "  log, line 2: a.c:1: error: no", f"  log: {log}"]
    assert [line for lines in others[2:] for line in lines] == [
        "",
        *(f"✗ {name}: failed, a.c:1: error: no" for name in "def"),
    ]


def test_a_plain_step_has_its_number_once_it_is_known() -> None:
    stream = io.StringIO()
    with PlainView(stream) as view:
        view.run_began(a_run(a_config("a", ConfigState.RUNNING)))
        view.output_line_received("a", "render", "")
        done = StepReport(title="render", seconds=1.0)
        view.config_changed(a_config("a", ConfigState.RUNNING, steps=(done,), expected_steps=9))
        view.output_line_received("a", "compile", "")
    assert [line.partition(" ")[2] for line in stream.getvalue().splitlines()[-2:]] == [
        "▸ a: render",
        "▸ a: compile (2/9)",
    ]
