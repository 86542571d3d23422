"""Messages between processes: JSON objects, one a line, over a pipe."""

from __future__ import annotations

import json
import threading
from typing import IO, Any

_LOCK = threading.Lock()  # threads of one process write to the same pipe


def encode(message: Any) -> str:
    """Return a message as a line, without its end."""
    return json.dumps(message)


def decode(line: str | bytes) -> dict[str, Any] | None:
    """Return the message of a line; None for a line of other output."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def write_line(stream: IO[str], line: str) -> None:
    """Write a whole line at once, whatever other threads write."""
    with _LOCK:
        stream.write(f"{line}\n")
        stream.flush()
