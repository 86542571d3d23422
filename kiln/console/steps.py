"""The steps of one piece of work: a line per step with its time."""

from __future__ import annotations

import contextlib
import time
from typing import IO, TYPE_CHECKING

from kiln.console.text import fit, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.status import Status

TITLE_WIDTH = 64
LIVE_WIDTH = 90


class Step:
    """One step under way: takes the lines of its output and what should be told of it afterwards."""

    def __init__(self, title: str, status: Status | None = None) -> None:
        self.title = title
        self.notes: list[str] = []
        self._status = status

    def note(self, text: str) -> None:
        """Keep a line that is shown below the step."""
        self.notes.append(text)

    def line(self, text: str) -> None:
        """Show the latest line of the step's output, on a terminal only."""
        if self._status is not None and (line := one_line(text)):
            from rich.markup import escape

            self._status.update(f"{escape(self.title)} [dim]{escape(fit(line, LIVE_WIDTH).rstrip())}[/dim]")


class Steps:
    """Shows steps on a stream, usually standard error."""

    def __init__(self, stream: IO[str], *, animated: bool) -> None:
        self._stream = stream
        self._animated = animated

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show a step from its start to its end, with its time; a step that raises is shown as failed."""
        start = time.monotonic()
        with self._live(title) as status:
            step = Step(title, status)
            try:
                yield step
            except BaseException:
                self._end(step, "failed", time.monotonic() - start)
                raise
        self._end(step, "done", time.monotonic() - start)

    def _end(self, step: Step, word: str, seconds: float) -> None:
        if self._animated:
            mark = {"done": "\x1b[32m✓\x1b[0m", "failed": "\x1b[31m✗\x1b[0m"}[word]
            self._say(f"{mark} {step.title:<{TITLE_WIDTH}} {seconds:6.1f} s")
        else:
            self._say(f"  {word:>6} {seconds:6.1f} s")
        for note in step.notes:
            self._say(f"         {note}")

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    @contextlib.contextmanager
    def _live(self, title: str) -> Iterator[Status | None]:
        """Show a moving sign on a terminal; elsewhere the title alone, on a line of its own."""
        if not self._animated:
            self._say(f"- {title}")
            yield None
            return
        from rich.console import Console as Terminal
        from rich.markup import escape

        with Terminal(file=self._stream, highlight=False).status(escape(title)) as status:
            yield status
