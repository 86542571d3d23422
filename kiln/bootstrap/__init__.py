"""The project's own environments, ``.venv`` and for the fleet ``.venv-fleet``: made from hash-locked lists.

Each is made on first use, from lists in requirements/.

This runs under the system's Python with nothing installed, before any other part of kiln: so it needs the standard
library alone and starts its few processes itself. Most runs find the environment as it should be, which one look at
its marker file tells; what is needed only to make one is imported then.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from kiln.bootstrap.state import COLLECTIONS, FLEET, FLEET_FOLDER, FOLDER, RUN, TEST, examine, python_of
from kiln.errors import Interrupted, KilnError, UnsupportedPython

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["RUN", "TEST", "enter", "environment", "fleet"]

OLDEST_FOR_THE_FLEET = (3, 11)  # ansible-core 2.19's, by its own metadata


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
    return _have(root / FOLDER, locks, say)


def fleet(root: Path, *, say: Callable[[str], None] = lambda _: None) -> Path:
    """Return the Python of the environment that ``kiln fleet`` runs on, beside whose own packages are kiln's.

    ``ansible-playbook`` and its like lie beside it, and find the collections by themselves. Raises what
    ``environment`` raises, and UnsupportedPython when this Python is too old for Ansible.
    """
    if sys.version_info < OLDEST_FOR_THE_FLEET:
        raise UnsupportedPython(
            f"kiln fleet needs Python 3.11 or newer, and this is {sys.version.split()[0]}",
            why="ansible-core 2.19, which it drives, does not run on older ones",
            hint="start it with another: python3.13 -m kiln fleet ..., or python3.12, python3.11",
        )
    return _have(root / FLEET_FOLDER, (FLEET, COLLECTIONS), say)


def _have(folder: Path, locks: Sequence[str], say: Callable[[str], None]) -> Path:
    """Return the Python of the environment in ``folder``, made if need be."""
    if examine(folder, locks).reason:
        from kiln.bootstrap.make import make

        try:
            make(folder, locks, say)
        except KeyboardInterrupt as stop:
            what = f"the set-up of {folder} was interrupted"
            raise Interrupted(what, hint="the next run starts it again") from stop
    return python_of(folder)


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
