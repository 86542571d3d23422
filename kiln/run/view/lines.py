"""The view of a run as lines: for a file or a pipe, and for GitHub Actions."""

from __future__ import annotations

import contextlib
import secrets
import time
from contextlib import AbstractContextManager
from enum import Enum
from typing import IO, TYPE_CHECKING

from kiln.base.text import duration, sanitized_line, unindented_terminal_line
from kiln.run.report.log import read_log
from kiln.run.report.text import cost_text
from kiln.run.view.state import (
    SIGNS,
    RunState,
    expected_config_period_text,
    expected_starts_text,
    state_count_text,
    time_of_day_text,
)
from kiln.state.results import ConfigRun, ConfigState, MatrixReport, RunCost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kiln.state.results import Progress


_SHIFT = 900.0  # seconds by which an end has to be later or earlier to be printed; or a tenth of what remains


class Verbosity(Enum):
    """The amount of text: failures and the total alone, also each state and step, or also the steps' output."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


class PlainView(AbstractContextManager["PlainView"]):
    """Prints a line for each new state of a config and for each step; their output only if it is verbose."""

    def __init__(
        self,
        stream: IO[str],
        *,
        labels: Mapping[str, str] | None = None,
        verbosity: Verbosity = Verbosity.NORMAL,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Print to ``stream``; ``labels`` are display names of configs."""
        self._stream = stream
        self._now = now
        self._end: float | None = None  # the expected end that was printed last
        self._state = RunState(labels)
        self._verbosity = verbosity

    def __exit__(self, *_: object) -> None:
        pass

    def run_began(self, report: MatrixReport) -> None:
        """Print the number of configs, and those that are already finished."""
        self._state.set_report(report)
        self._print_unless_quiet(f"run {report.run}: {state_count_text(report.configs)}; {report.jobs} in parallel")
        for config in report.configs:
            if config.state is not ConfigState.WAITING:
                self._print_unless_quiet(config_state_line(self._state, config, self._now()))

    def config_changed(self, config: ConfigRun) -> None:
        """Print a new state, but not the same state with new figures."""
        previous = self._state.configs.get(config.config)
        self._state.update_config(config)
        if previous is None or previous.state is not config.state:
            self._print_unless_quiet(config_state_line(self._state, config, self._now()))
        elif summary := compile_summary(previous, config):
            self._print_progress(config.config, summary)

    def output_line_received(self, config: str, step: str, line: str) -> None:
        """Print a step when it begins, and its output if that is wanted."""
        output = self._state.outputs.get(config)
        self._state.add_output_line(config, step, line)
        stage = step.partition(": ")[0]  # of a worker's preparation, whose tasks would fill pages
        if step and (output is None or output.step.partition(": ")[0] != stage):
            number = self._state.step_number(config)
            self._print_progress(config, unindented_terminal_line(step) + (f" ({number})" if number else ""))
        if line and self._verbosity is Verbosity.VERBOSE:
            self._print_unless_quiet(f"  {self._state.config_label(config)} | {sanitized_line(line).rstrip()}")

    def progress_changed(self, config: str, progress: Progress) -> None:
        """Print each tenth of a compile or a download, and a stall."""
        if text := self._state.store_progress_and_log_line(config, progress):
            self._print_progress(config, text)

    def run_cost_changed(self, cost: RunCost) -> None:
        """Print the first forecast, and then each tenth of the cost that is spent and each end that differs by much."""
        previous, self._state.cost = self._state.cost, cost
        if not cost.config_ends:
            return
        now, shift = self._now(), 0.0 if self._end is None else cost.end - self._end
        end = time_of_day_text(cost.end, now)
        if self._end is None or (
            cost.is_charged and (previous is None or _tenths_of_cost_spent(cost) != _tenths_of_cost_spent(previous))
        ):
            price = f"cost: {cost_text(cost)}, " if cost.is_charged else ""
            rest = expected_starts_text(cost, now)
            self._print_unless_quiet(f"{price}the end at about {end}" + (f"; {rest}" if rest else ""))
        elif abs(shift) > max(_SHIFT, (cost.end - now) / 10):
            difference = f"{duration(abs(shift))} {'later' if shift > 0 else 'earlier'} than before"
            self._print_unless_quiet(f"the end is now expected at about {end}, {difference}")
        else:
            return
        self._end = cost.end

    def run_ended(self, report: MatrixReport) -> None:
        """Print the reasons of failures, and the total."""
        self._state.set_report(report)
        if blocks := list(failure_blocks(self._state)):
            print(*(line for lines in blocks for line in lines), "", sep="\n", file=self._stream)
        cost = f"; {cost_text(report.cost)}" if report.cost and report.cost.is_charged else ""
        self._print_with_time(f"run {report.run} ended: {state_count_text(report.configs)}{cost}")

    def _print_progress(self, config: str, text: str) -> None:
        self._print_unless_quiet(f"{SIGNS[ConfigState.RUNNING]} {self._state.config_label(config)}: {text}")

    def _print_unless_quiet(self, text: str) -> None:
        if self._verbosity is not Verbosity.QUIET:
            self._print_with_time(text)

    def _print_with_time(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=self._stream, flush=True)


def _tenths_of_cost_spent(cost: RunCost) -> int:
    return int(10 * cost.spent / cost.expected) if cost.expected else 0


def config_state_line(run: RunState, config: ConfigRun, now: float) -> str:
    """Return a config's state in one line."""
    elapsed = f" after {duration(config.finished - config.started)}" if config.started and config.finished else ""
    expected = f", about {duration(config.estimate)}" if config.estimate and config.state is ConfigState.RUNNING else ""
    if expected and (period := expected_config_period_text(run.cost, config, now)):
        expected += f", {period}"
    why = f" ({unindented_terminal_line(config.reason.partition(chr(10))[0])})" if config.reason else ""
    return f"{SIGNS[config.state]} {run.config_label(config.config)}: {config.state.value}{elapsed}{expected}{why}"


def compile_summary(previous: ConfigRun, config: ConfigRun) -> str:
    """Return the sources of a compile's actions, if a compile is among the new steps."""
    steps = config.steps[len(previous.steps) :]
    return "; ".join(f"compiled {step.compile}" for step in steps if step.compile)


_WHOLE = 3  # failures that are told with the end of their output; of the others one line each


def failure_blocks(run: RunState) -> Iterator[list[str]]:
    """Yield the lines of each failure: the first few whole, each of the others as one line with its cause."""
    for number, config in enumerate(run.failed_configs()):
        if number < _WHOLE:
            yield ["", *failure_lines(run, config)]
        else:
            causes = read_log(config).causes
            reason = causes[-1].text if causes else unindented_terminal_line(config.reason.partition("\n")[0])
            title = f"{SIGNS[config.state]} {run.config_label(config.config)}: {config.state.value}"
            yield ["", title + (f", {reason}" if reason else "")][number > _WHOLE :]


def failure_lines(run: RunState, config: ConfigRun) -> Iterator[str]:
    """Yield a failure's reason, the line of its cause, the last lines of the step, and the log's path.

    The last lines are left out if the reason explains itself, or the cause is one that kiln knows.
    """
    yield f"{SIGNS[config.state]} {run.config_label(config.config)}: {config.state.value}"
    reason = [text for line in config.reason.splitlines() if (text := unindented_terminal_line(line)) not in {"", "|"}]
    yield from (f"    {line}" if line.startswith("| ") else f"  {line}" for line in reason)
    causes = read_log(config).causes
    yield from (f"  log, line {cause.line}: {cause.text}" for cause in causes if cause.text not in config.reason)
    if len(reason) < 2 and not any(cause.cause for cause in causes):
        yield from (f"    | {line}" for line in run.last_output_lines(config.config))
    if config.log is not None:
        yield f"  log: {config.log}"


class GitHubView(AbstractContextManager["GitHubView"]):
    """Shows a run in the log of GitHub Actions.

    The output of a single config is shown at once, in a fold for each step. Folds cannot be interleaved, so with
    parallel configs each gets a fold when it is finished, with the end of its output.
    """

    def __init__(self, stream: IO[str], *, labels: Mapping[str, str] | None = None) -> None:
        """Print to ``stream``; ``labels`` are display names of configs."""
        self._stream = stream
        self._state = RunState(labels)
        self._folds = contextlib.ExitStack()
        self._single = False

    def __exit__(self, *_: object) -> None:
        self._folds.close()

    def run_began(self, report: MatrixReport) -> None:
        """Print the number of configs."""
        self._state.set_report(report)
        self._single = report.jobs == 1 or len(report.configs) == 1
        self._print_lines(f"run {report.run}: {state_count_text(report.configs)}")

    def config_changed(self, config: ConfigRun) -> None:
        """Print a new state."""
        previous = self._state.configs.get(config.config)
        self._state.update_config(config)
        if previous is not None and previous.state is config.state:
            if summary := compile_summary(previous, config):
                self._print_lines(f"{self._state.config_label(config.config)}: {summary}")
            return
        self._folds.close()
        line = config_state_line(self._state, config, time.time())
        if config.started and config.finished and not self._single:
            with self._log_group(line):
                self._print_lines(*self._state.last_output_lines(config.config))
        else:
            self._print_lines(_disable_legacy_commands(line))

    def output_line_received(self, config: str, step: str, line: str) -> None:
        """Print a line, in the fold of its step."""
        output = self._state.outputs.get(config)
        self._state.add_output_line(config, step, line)
        if not self._single:
            return
        if step and (output is None or output.step != step):
            self._folds.close()
            self._folds.enter_context(self._log_group(step))
        if line:
            self._print_lines(sanitized_line(line).rstrip())

    def progress_changed(self, config: str, progress: Progress) -> None:
        """Print each tenth of a compile or a download, and a stall."""
        if text := self._state.store_progress_and_log_line(config, progress):
            self._print_lines(_disable_legacy_commands(sanitized_line(f"{self._state.config_label(config)}: {text}")))

    def run_cost_changed(self, cost: RunCost) -> None:
        """Store the cost of a run on workers, which is printed at the end."""
        self._state.cost = cost

    def run_ended(self, report: MatrixReport) -> None:
        """Annotate the failures, and print the total."""
        self._folds.close()
        self._state.set_report(report)
        for config in self._state.failed_configs():
            title, *reason = failure_lines(self._state, config)
            text = _escape_command_data("\n".join(reason) or title)
            self._print_lines(
                f"::error title={_escape_command_data(title).replace(':', '%3A').replace(',', '%2C')}::{text}"
            )
        cost = f"; {cost_text(report.cost)}" if report.cost and report.cost.is_charged else ""
        self._print_lines(f"run {report.run} ended: {state_count_text(report.configs)}{cost}")

    @contextlib.contextmanager
    def _log_group(self, title: str) -> Iterator[None]:
        """Put output into a fold and disable commands in it; the word that enables them again cannot be guessed."""
        word = secrets.token_hex(16)
        self._print_lines(
            f"::group::{_escape_command_data(unindented_terminal_line(title))}", f"::stop-commands::{word}"
        )
        try:
            yield
        finally:
            self._print_lines(f"::{word}::", "::endgroup::")

    def _print_lines(self, *lines: str) -> None:
        for line in lines:
            print(line, file=self._stream)
        self._stream.flush()


def _disable_legacy_commands(text: str) -> str:
    """Break the older syntax of commands, which the runner finds anywhere in a line."""
    return text.replace("##[", "## [")


def _escape_command_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
