"""Text for people: tables, times, escaped output that fits a line, and the steps of a command."""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections import deque
from itertools import zip_longest
from typing import IO, TYPE_CHECKING

from kiln.base.errors import UsageError
from kiln.base.patterns import HIDDEN, lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.status import Status


_LONGEST = 4096  # characters of a line that are processed
_ESCAPES = lazy_pattern(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_BREAKS = lazy_pattern(r"[\s_.,/+-]")
_TIME = lazy_pattern(r"(\d+(?:\.\d+)?)\s*(h|min|m|s|)")
_UNITS = {"": 3600.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}
_HANG = 2  # columns by which the further lines of a folded one are indented
_NARROWEST = 10  # characters of a column whose texts are broken
_NAMES = 6  # characters that a column of names has at least
_SURROGATES = lazy_pattern(r"[\ud800-\udfff]")


def sanitized_line(text: str) -> str:
    """Return a line of untrusted output without anything that could move, color, reorder or hide text."""
    text = _ESCAPES.sub("", text[:_LONGEST]).replace("\t", "    ")
    return _SURROGATES.sub("\ufffd", HIDDEN.sub("", text))


def line_as_terminal_shows(text: str) -> str:
    """Return a line as a terminal would finally show it, without escapes; of a progress bar, its latest state."""
    parts = [part for part in text[-_LONGEST:].split("\r") if part.strip()]
    return sanitized_line(parts[-1]).rstrip() if parts else ""


def unindented_terminal_line(text: str) -> str:
    """Return a line as a terminal would finally show it, without its indentation."""
    return line_as_terminal_shows(text).strip()


def fit_to_width(text: str, width: int) -> str:
    """Return text cut or padded to ``width`` columns of a terminal; cut text ends in an ellipsis."""
    from rich.cells import cell_len, set_cell_size

    if width <= 0:
        return ""
    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def fit_name_to_width(text: str, width: int) -> str:
    """Return a name cut or padded to ``width`` columns; it is cut in the middle, for names often differ at the end."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width or width < 5:
        return fit_to_width(text, width)
    end = text[-(width // 2) :]
    while cell_len(end) > width // 2:
        end = end[1:]
    return f"{set_cell_size(text, width - 1 - cell_len(end))}…{end}"


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), width: int | None = None
) -> str:
    """Return rows aligned under a header; ``right`` are the right-aligned columns.

    A table wider than ``width`` has its widest texts on several lines, unless it needs more than it has in any case.
    """
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    if width is not None:
        widths = _fitted_widths(widths, [len(title) for title in header], width)
    return _aligned_table(header, rows, widths, right)


def table_with_whole_names(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), width: int | None = None
) -> str:
    """Return what `table` does, with the first column's texts whole: one that does not fit has a line of its own."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    if width is None or sum(widths) + 2 * (len(widths) - 1) <= width:
        return _aligned_table(header, rows, widths, right)
    least = max(_NAMES, len(header[0]))
    others = _fitted_widths(widths[1:], [len(title) for title in header[1:]], width - 2 - least)
    first = max(least, width - sum(others) - 2 * len(others))
    lines: list[Sequence[str]] = []
    for row in rows:
        is_long = len(row[0]) > first
        lines += [(row[0], *[""] * len(others)), ("", *row[1:])] if is_long else [row]
    return _aligned_table(header, lines, [first, *others], right)


def _aligned_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[int]
) -> str:

    def aligned_line(row: Sequence[str]) -> str:
        texts = (
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(texts).rstrip()

    lines = [aligned_line(header), aligned_line(["-" * width for width in widths])]
    for row in rows:
        alone = bool(row[0]) and not any(row[1:])  # a name whose other texts follow
        parts = [[text] if alone else wrapped_lines(text, width) for text, width in zip(row, widths, strict=True)]
        lines += [aligned_line(items) for items in zip_longest(*parts, fillvalue="")]
    return "\n".join(lines)


def _fitted_widths(widths: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Return the widths of columns, the widest ones reduced until all fit; unchanged if they cannot."""
    result = list(widths)
    while sum(result) + 2 * (len(result) - 1) > width:
        column = max(range(len(result)), key=result.__getitem__)
        if result[column] <= max(_NARROWEST, least[column]):
            return list(widths)
        result[column] -= 1
    return result


def wrapped_lines(text: str, width: int) -> list[str]:
    """Return a text in lines of at most ``width`` characters, broken after blanks and the separators of names."""
    lines, rest = [], text
    while len(rest) > width:
        end = max((match.end() for match in _BREAKS.finditer(rest[:width])), default=0) or width
        lines.append(rest[:end].rstrip())
        rest = rest[end:].lstrip()
    return [*lines, rest]


def hanging_indent_lines(line: str, width: int | None) -> list[str]:
    """Return a line in lines of at most ``width`` characters, the further ones indented more; unchanged without one."""
    lead = len(line) - len(line.lstrip(" "))
    if width is None or len(line) <= width or width < lead + _NARROWEST + _HANG:
        return [line]
    further = " " * (lead + _HANG)
    return textwrap.wrap(
        line[lead:],
        width,
        initial_indent=" " * lead,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def count_text(number: int, noun: str) -> str:
    """Return a number of things as text: ``1 config``, ``12 configs``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_of(names: Iterable[str], most: int) -> str:
    """Return the first of some names, and how many there are besides: ``a, b and 3 more``."""
    shown = list(names)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return f"{', '.join(shown[:most])}{more}"


def duration(seconds: float) -> str:
    """Return a duration as text: ``0.4 s``, ``1 min 05 s``, ``3 h 12 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def duration_seconds(text: str) -> float:
    """Return the seconds of a time such as ``10h``, ``90min``, ``45 s``; a bare number is hours.

    Raises:
        UsageError: when it is invalid.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"invalid time {text!r}", hint="write it as 10h, 90min or 45s")
    return float(match[1]) * _UNITS[match[2]]


def elapsed_text(seconds: float) -> str:
    """Return a running time: ``0:07``, ``12:05``, ``3:12:05``."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class RemainingTimeEstimate:
    """Estimates the remaining time of anything that is counted, from its rate in the last ``window`` seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._samples: deque[tuple[float, int]] = deque()

    def remaining_seconds(self, now: float, done: int, total: int | None) -> float | None:
        """Return the remaining seconds, None while there are too few samples."""
        self._samples.append((now, done))
        while now - self._samples[0][0] > self._window and len(self._samples) > 2:
            self._samples.popleft()
        start, done_before = self._samples[0]
        if total is None or done <= done_before or now <= start:
            return None
        return max(0, total - done) * (now - start) / (done - done_before)


_DUE, _RECENT = 0.5, 30.0  # seconds between two reports of a download, and of the past that its estimate is based on


class DownloadPace:
    """Reports a download at its start, twice a second at most, and at its end, with the remaining seconds, if known."""

    def __init__(self, report: Callable[[int, int | None, float | None], None]) -> None:
        self._report = report
        self._total: int | None = -1
        self._next = 0.0

    def received(self, done: int, total: int | None) -> None:
        """Note how many bytes are there of how many, None if unknown; another total is another download."""
        now = time.monotonic()
        if total != self._total:
            self._total, self._next, self._estimate = total, 0.0, RemainingTimeEstimate(_RECENT)
        if done == total or now >= self._next:
            self._next = now + _DUE
            self._report(done, total, self._estimate.remaining_seconds(now, done, total))


def remaining_text(seconds: float) -> str:
    """Return an estimate as text: ``about 41 s left``, ``about 3 min 20 s left``."""
    return f"about {max(1, round(seconds))} s left" if seconds < 59.5 else f"about {duration(seconds)} left"


def received_text(done: int, total: int | None, left: float | None) -> str:
    """Return the progress of a download: ``120 MB of 614 MB, 12 MB/s, about 41 s left``, or what is known of it."""
    from kiln.base.files import human_readable_size

    if total is None or left is None:
        return human_readable_size(done) + ("" if total is None else f" of {human_readable_size(total)}")
    speed = f", {human_readable_size(round((total - done) / left))}/s" if left > 0.1 else ""  # not of almost nothing
    remaining = f", {remaining_text(left)}" if done < total else ""
    return f"{human_readable_size(done)} of {human_readable_size(total)}{speed}{remaining}"


PARTS = 10  # approximate number of lines for the progress of a step in plain output


TITLE_WIDTH = 64
LIVE_WIDTH = 90


class CommandStep:
    """A running step, with its latest line of output and notes to print afterwards."""

    def __init__(self, title: str, status: Status | None, print_line: Callable[[str], None]) -> None:
        self.title = title
        self.notes: list[str] = []
        self._status = status
        self._print_line = print_line
        self._pace, self._part = DownloadPace(self._show_received), 0

    def note(self, text: str) -> None:
        """Store a line to print below the step."""
        self.notes.append(text)

    def show_output_line(self, text: str) -> None:
        """Show a line of the step's output, on a terminal only."""
        if self._status is not None and (line := unindented_terminal_line(text)):
            from rich.markup import escape

            self._status.update(f"{escape(self.title)} [dim]{escape(fit_to_width(line, LIVE_WIDTH).rstrip())}[/dim]")

    def show_received(self, done: int, total: int | None) -> None:
        """Show how many bytes of the step's download are there; without a terminal one line for each tenth."""
        self._pace.received(done, total)

    def _show_received(self, done: int, total: int | None, left: float | None) -> None:
        text = received_text(done, total, left)
        if self._status is not None:
            self.show_output_line(text)
            return
        part = PARTS * done // total if total else 0
        if self._part < part and (self._part or part < PARTS):  # one that is over at once needs no line
            self._print_line(f"         {text}")
        self._part = part % PARTS


class CommandStepsView:
    """Shows steps on a stream, usually standard error."""

    def __init__(self, stream: IO[str], *, animated: bool, color: bool = True) -> None:
        self._stream = stream
        self._animated = animated
        self._color = color

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[CommandStep]:
        """Show a step and its time during the block; one that raises is shown as failed."""
        start = time.monotonic()
        with self._spinner_or_title(title) as status:
            step = CommandStep(title, status, self._print_line)
            try:
                yield step
            except BaseException:
                self._print_step_result(step, "failed", time.monotonic() - start)
                raise
        self._print_step_result(step, "done", time.monotonic() - start)

    def _print_step_result(self, step: CommandStep, word: str, seconds: float) -> None:
        if self._animated:
            sign, style = {"done": ("✓", 32), "failed": ("✗", 31)}[word]
            mark = f"\x1b[{style}m{sign}\x1b[0m" if self._color else sign
            self._print_line(f"{mark} {step.title:<{TITLE_WIDTH}} {seconds:6.1f} s")
        else:
            self._print_line(f"  {word:>6} {seconds:6.1f} s")
        for note in step.notes:
            self._print_line(f"         {note}")

    def _print_line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    @contextlib.contextmanager
    def _spinner_or_title(self, title: str) -> Iterator[Status | None]:
        if not self._animated:
            self._print_line(f"- {title}")
            yield None
            return
        from rich.console import Console as Terminal
        from rich.markup import escape

        with Terminal(file=self._stream, highlight=False, no_color=not self._color).status(escape(title)) as status:
            yield status
