"""Record every line of a build."""

from __future__ import annotations

import contextlib
import sys
from datetime import datetime
from typing import TYPE_CHECKING, TextIO

from kiln import interprocess_messages
from kiln.console.progress_text import ProgressLineSelector
from kiln.job.messages import MARK, parse_message, send_message
from kiln.job.untrusted_build_results import is_valid_message
from kiln.ledger import run_record_json_columns
from kiln.masking import masked

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = frozenset({"title", "notes"})  # the fields of a message that are shown to people


class BuildLog:
    """A config's log: every line of its build with the time, passed on to standard output."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = ProgressLineSelector()

    def __enter__(self) -> BuildLog:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file: TextIO = self.path.open("a", encoding="utf-8", buffering=1)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.file.close()

    def record_and_pass_on_line(self, line: str) -> None:
        """Record a line of the build process."""
        message = parse_message(line)
        if message is None or not is_valid_message(message):  # a script can write into the same stream
            text = masked(line) if line.startswith(MARK) else line  # all other lines were masked when they were read
            self.write_line(text)
            interprocess_messages.write_line(sys.stdout, text.lstrip(MARK))
            return
        message = {**message, **{name: _masked_texts(message[name]) for name in TEXTS & message.keys()}}
        if message["kind"] == "step":
            self.write_line(f"=== {message.get('title')}")
        elif message["kind"] == "done":
            self.write_line(f"--- {message.get('title')}: {message.get('seconds')} s")
            for note in message.get("notes", ()):
                self.write_line(f"    {note}")
        elif message["kind"] == "progress" and (
            progress := self.journal.next_log_line(run_record_json_columns.progress_from_json(message))
        ):
            self.write_line(f"    {progress}")
        send_message(**message)

    def write_line(self, line: str) -> None:
        """Write a line of the log."""
        now = datetime.now().astimezone()
        with contextlib.suppress(OSError):  # the build reports a full disk itself
            self.file.write(f"{now:%Y-%m-%d %H:%M:%S} {line}\n")


def _masked_texts(text: str | list[str]) -> str | list[str]:
    return masked(text) if isinstance(text, str) else [masked(part) for part in text]
