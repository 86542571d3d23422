"""The end of a log, harmless and bounded, for a page that must not grow with it."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from kiln.console import one_line

if TYPE_CHECKING:
    from pathlib import Path

LINES = 40
WIDTH = 300  # characters of a line
_BYTES = 1 << 16


def tail(log: Path) -> str:
    """Return the last lines of a log, or nothing when it is gone or no plain file."""
    with contextlib.suppress(OSError):
        # A build could have put a link in the log's place.
        descriptor = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor has no path
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _BYTES))
            lines = file.read(_BYTES).decode(errors="replace").split("\n")
        shown = [cut(text) for line in lines if (text := one_line(line))]
        return "\n".join(shown[-LINES:])
    return ""


def cut(text: str, width: int = WIDTH) -> str:
    """Return text that is no longer than ``width``; a cut ends in an ellipsis."""
    return text if len(text) <= width else text[: width - 1] + "…"
