"""Words and lines for the user's shell: cmd.exe's on Windows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

if sys.platform == "win32":
    import subprocess

    def quoted(word: str) -> str:
        """Return a word as it is written on a command line."""
        return subprocess.list2cmdline([word])

    def with_programs_of(prefix: Path) -> str:
        """Return the line that makes a prefix's programs available without conda."""
        folders = (prefix, prefix / "Library" / "bin", prefix / "Scripts")
        return f'set "PATH={";".join(map(str, folders))};%PATH%"'

else:
    import shlex

    def quoted(word: str) -> str:
        """Return a word as it is written on a command line."""
        return shlex.quote(word)

    def with_programs_of(prefix: Path) -> str:
        """Return the line that makes a prefix's programs available without conda."""
        return f"export PATH={quoted(f'{prefix}/bin')}:$PATH"
