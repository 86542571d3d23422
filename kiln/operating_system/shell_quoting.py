"""Words and lines for the user's shell: cmd.exe's on Windows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

if sys.platform == "win32":
    import io
    import subprocess

    def use_utf8_output() -> None:
        """Have this process print UTF-8 into files and pipes, too, where Windows has a code page of its language."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")

    def quoted_word(word: str) -> str:
        """Return a word as it is written on a command line."""
        return subprocess.list2cmdline([word])

    def path_export_line(prefix: Path) -> str:
        """Return the line that makes a prefix's programs available without conda."""
        folders = (prefix, prefix / "Library" / "bin", prefix / "Scripts")
        return f'set "PATH={";".join(map(str, folders))};%PATH%"'

else:

    def use_utf8_output() -> None:
        """Leave the output as the user's locale has it."""

    def quoted_word(word: str) -> str:
        """Return a word as it is written on a command line."""
        import shlex

        return shlex.quote(word)

    def path_export_line(prefix: Path) -> str:
        """Return the line that makes a prefix's programs available without conda."""
        return f"export PATH={quoted_word(f'{prefix}/bin')}:$PATH"


def joined_command_line(words: Iterable[str]) -> str:
    """Return words as a command line."""
    return " ".join(map(quoted_word, words))
