"""A run told to GitHub Actions: a fold per step, and an annotation for each cell that failed.

What a build prints may look like a command to the runner (``::set-output``), so commands are switched off around it:
https://docs.github.com/actions/reference/workflow-commands-for-github-actions, "Stopping and starting workflow
commands".
"""

from __future__ import annotations

import contextlib
import secrets
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING

from kiln.console.board import Board
from kiln.console.plain import compiled, headline, told
from kiln.console.states import counted
from kiln.console.text import one_line, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from kiln.model.compile import Progress
    from kiln.model.run import CellRun, MatrixReport


class GitHubView(AbstractContextManager["GitHubView"]):
    """Tells a run to GitHub Actions.

    With one cell at a time its output is shown as it comes, a fold per step. Folds cannot be interleaved, so with more
    each cell gets one fold when it is over, with the end of its output.
    """

    def __init__(self, stream: IO[str], *, labels: Mapping[str, str] | None = None) -> None:
        """Print to ``stream``; ``labels`` are names for the cells."""
        self._stream = stream
        self._board = Board(labels)
        self._open = contextlib.ExitStack()
        self._alone = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def run_began(self, report: MatrixReport) -> None:
        """Tell how many cells there are."""
        self._board.take(report)
        self._alone = report.jobs == 1 or len(report.cells) == 1
        self._say(f"run {report.run}: {counted(cell.state for cell in report.cells)}")

    def cell_changed(self, cell: CellRun) -> None:
        """Tell of a new state, with an annotation when it is a failure."""
        before = self._board.cells.get(cell.config)
        self._board.change(cell)
        if before is not None and before.state is cell.state:
            if said := compiled(before, cell):
                self._say(f"{self._board.label(cell.config)}: {said}")
            return
        self._open.close()
        if cell.started and cell.finished and not self._alone:
            with self._fold(headline(self._board, cell)):
                self._say(*self._board.tail(cell.config))
        else:
            self._say(_harmless(headline(self._board, cell)))

    def cell_line(self, config: str, step: str, line: str) -> None:
        """Show a line, in the fold of its step."""
        voice = self._board.voices.get(config)
        self._board.hear(config, step, line)
        if not self._alone:
            return
        if step and (voice is None or voice.step != step):
            self._open.close()
            self._open.enter_context(self._fold(step))
        if line:
            self._say(plain(line).rstrip())

    def cell_progress(self, config: str, progress: Progress) -> None:
        """Tell of each tenth of a compile, and of a stall."""
        if said := self._board.advance(config, progress):
            self._say(_harmless(plain(f"{self._board.label(config)}: {said}")))

    def run_ended(self, report: MatrixReport) -> None:
        """Annotate what failed, and tell the sum."""
        self._open.close()
        self._board.take(report)
        for cell in self._board.failures():
            title, *reason = told(self._board, cell)
            self._say(f"::error title={_property(title)}::{_data(chr(10).join(reason) or title)}")
        self._say(f"run {report.run} ended: {counted(cell.state for cell in report.cells)}")

    @contextlib.contextmanager
    def _fold(self, title: str) -> Iterator[None]:
        """Put what is said into a fold, none of it taken for a command; the word to end that is not to be guessed."""
        word = secrets.token_hex(16)
        self._say(f"::group::{_data(one_line(title))}", f"::stop-commands::{word}")
        try:
            yield
        finally:
            self._say(f"::{word}::", "::endgroup::")

    def _say(self, *lines: str) -> None:
        for line in lines:
            print(line, file=self._stream)
        self._stream.flush()


def _harmless(text: str) -> str:
    """Break the older form of a command, which the runner finds anywhere in a line."""
    return text.replace("##[", "## [")


def _data(text: str) -> str:
    """Escape the text of a command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property of a command."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
