"""The project's own environment, ``.venv``: made on first use from the hash-locked lists in requirements/.

This runs under the system's Python with nothing installed, before any other part of kiln: so it needs the standard
library alone and starts its few processes itself. Most runs find the environment as it should be, which one look at
its marker file tells; what is needed only to make one is imported then.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from kiln.bootstrap.state import FOLDER, RUN, TEST, examine, python_of
from kiln.errors import Interrupted, KilnError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["RUN", "TEST", "enter", "environment"]


def enter(root: Path, *arguments: str, locks: Sequence[str] = (RUN,)) -> NoReturn:
    """Replace this process by the environment's Python running ``arguments``, or leave it with a failure's exit code.

    The entry scripts end in this, before there is any command line; so failures are told and turned into codes here.
    The interpreter runs isolated: neither PYTHONPATH nor the current folder can put another module in the place of one
    of ours.
    """
    try:
        python = environment(root, locks=locks, say=_tell)
    except KilnError as failure:
        _tell(f"error: {failure}")
        sys.exit(failure.exit_code)
    os.execv(python, [str(python), "-I", *arguments])  # noqa: S606 - no shell is wanted


def environment(root: Path, *, locks: Sequence[str] = (RUN,), say: Callable[[str], None] = lambda _: None) -> Path:
    """Return the Python of the environment of the clone at ``root``, after making or mending it where that is needed.

    ``locks`` are the files of requirements/ whose packages must be there; ``say`` gets one line for each step.
    Raises MissingTool, DownloadFailed, HashMismatch, NotWritable, DiskFull or Interrupted; the next call then starts
    afresh.
    """
    if examine(root, locks).reason:
        from kiln.bootstrap.make import make

        try:
            make(root, locks, say)
        except KeyboardInterrupt as stop:
            what = f"the set-up of {root / FOLDER} was interrupted"
            raise Interrupted(what, hint="the next run starts it again") from stop
    return python_of(root)


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
