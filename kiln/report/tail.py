"""The end of a log, escaped and of limited size, for the page of a run."""

from __future__ import annotations

import contextlib
import os
from typing import IO, TYPE_CHECKING

from kiln.console.run_state import TRACED_VARIABLE
from kiln.console.text import line_as_terminal_shows
from kiln.lazy_pattern import lazy_pattern
from kiln.operating_system.file_operations import open_regular_file

if TYPE_CHECKING:
    from pathlib import Path

LINES = 40
WIDTH = 300  # characters of a line
_BYTES = 1 << 16
_TIME = lazy_pattern(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: |$)")  # before each line of a config's log


def open_log(log: Path) -> IO[bytes]:
    """Open a log to read it; a build could have replaced it by a link or a pipe, which are not read.

    Raises:
        OSError: it is missing, or not a regular file.
    """
    return open(open_regular_file(log), "rb")  # noqa: PTH123 - a descriptor has no path


def end_of_log(log: Path) -> str:
    """Return the last lines of a log, or an empty text if it is missing or not a regular file.

    Empty lines and the trace of a script's variables are left out.
    """
    with contextlib.suppress(OSError):
        with open_log(log) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _BYTES))
            lines = file.read(_BYTES).decode(errors="replace").split("\n")
        texts = [
            cut_to_width(text)
            for line in lines
            if (text := line_as_terminal_shows(line)) and _is_informative_line(text)
        ]
        return "\n".join(texts[-LINES:])
    return ""


def _is_informative_line(line: str) -> bool:
    content = _TIME.sub("", line, count=1)
    return bool(content.strip()) and not TRACED_VARIABLE.match(content)


def cut_to_width(text: str, width: int = WIDTH) -> str:
    """Return text of at most ``width`` characters; cut text ends in an ellipsis."""
    return text if len(text) <= width else text[: width - 1] + "…"
