"""The view of a run in GitHub Actions: a fold for each step, and an annotation for each failed config.

A build's output may look like a command to the runner (``::set-output``), so commands are disabled around it:
https://docs.github.com/actions/reference/workflow-commands-for-github-actions, "Stopping and starting workflow
commands".
"""

from __future__ import annotations

import contextlib
import secrets
import time
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING

from kiln.console.plain import compile_summary, config_state_line, failure_lines
from kiln.console.progress_text import state_count_text
from kiln.console.run_state import RunState
from kiln.console.text import cost_text, sanitized_line, unindented_terminal_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kiln.model.bazel_progress_and_report import Progress
    from kiln.model.run import ConfigRun, MatrixReport, RunCost


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

    def compile_progress_changed(self, config: str, progress: Progress) -> None:
        """Print each tenth of a compile, and a stall."""
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
            self._print_lines(f"::error title={_escape_command_property(title)}::{text}")
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


def _escape_command_property(text: str) -> str:
    return _escape_command_data(text).replace(":", "%3A").replace(",", "%2C")
