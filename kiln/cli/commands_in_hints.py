"""Commands in hints and notes, as the user's shell starts them: with the path of a kiln that is not on PATH."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kiln.cli import COMMANDS
from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from kiln.errors import KilnError

# A command of kiln's after its bare name, which is neither the end of a path nor a module's.
_COMMAND = lazy_pattern(rf"(?<![\w./-])(?<!-m )kiln(?= (?:--help|{'|'.join(COMMANDS)})\b)")


def make_pasteable(text: str, root: Path) -> str:
    """Return a text with its kiln commands as the user's shell starts them on the feedstock at ``root``."""
    if not _COMMAND.search(text):
        return text
    from kiln.cli.failed_run_error_text import kiln_command_words
    from kiln.operating_system.shell_quoting import joined_command_line

    folder = () if root.absolute() == Path.cwd() else ("-C", str(root))
    program = joined_command_line((*kiln_command_words(), *folder))
    return _COMMAND.sub(lambda _: program, text)


def make_hints_pasteable(error: KilnError, root: Path) -> None:
    """Make the commands in the hints of an error pasteable."""
    error.hint = make_pasteable(error.hint, root)
    for other in error.others:
        make_hints_pasteable(other, root)
