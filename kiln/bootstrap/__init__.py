"""The project's own environments, ``.venv`` and for the fleet ``.venv-fleet``.

Each is created on first use from the hash-locked lists in requirements/.

This runs under the system's Python with nothing installed, before any other part of kiln: so it uses the standard
library alone and starts its few processes itself. Most runs find a valid environment with one read of its marker
file; modules that only the creation needs are imported then.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from kiln.bootstrap import clone_check_and_requirement_lists
from kiln.bootstrap.environment_state import (
    COLLECTIONS,
    FLEET,
    FLEET_FOLDER,
    FOLDER,
    RUN,
    TEST,
    environment_python,
    examine_environment,
)
from kiln.errors import Interrupted, KilnError, UnsupportedPython
from kiln.operating_system import home_fallback, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["RUN", "TEST", "ensure_environment", "ensure_fleet_environment", "exec_in_environment"]

OLDEST_FOR_THE_FLEET = (3, 11)  # ansible-core 2.19's, by its own metadata


def exec_in_environment(root: Path, *arguments: str, locks: Sequence[str] = (RUN,)) -> NoReturn:
    """Replace this process by the environment's Python with ``arguments``, or exit with a failure's exit code.

    The entry scripts call this before there is a command line, so failures are printed and mapped to exit codes here.
    The interpreter runs isolated: neither PYTHONPATH nor the current folder can replace one of kiln's modules.
    """
    home_fallback.add_missing_home_variables()
    try:
        python = ensure_environment(root, locks=locks, say=_print_line)
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)
    except KilnError as failure:
        _print_line(f"error: {failure}")
        sys.exit(failure.exit_code)
    processes.replace_process(python, ["-I", *arguments])


def ensure_environment(
    root: Path, *, locks: Sequence[str] = (RUN,), say: Callable[[str], None] = lambda _: None
) -> Path:
    """Return the Python of the environment of the clone at ``root``, after creating or completing it if needed.

    ``locks`` are the files of requirements/ whose packages it must have; ``say`` gets one line for each step. Raises
    MissingTool, DownloadFailed, HashMismatch, NotWritable, DiskFull or Interrupted; the next call then starts again.
    """
    return _ensure_environment_in(root / FOLDER, locks, say)


def ensure_fleet_environment(root: Path, *, say: Callable[[str], None] = lambda _: None) -> Path:
    """Return the Python of the environment for ``kiln fleet``, which also holds kiln's own packages.

    ``ansible-playbook`` and Ansible's other programs are in the same folder, and find the collections. Raises the
    same as ``environment``, MissingTool when ``root`` is not a clone, and UnsupportedPython when this Python is too old
    for Ansible.
    """
    if sys.version_info < OLDEST_FOR_THE_FLEET:
        raise UnsupportedPython(
            f"kiln fleet needs Python 3.11 or newer, and this is {sys.version.split()[0]}",
            why="ansible-core 2.19, which it drives, does not run on older ones",
            hint="start it with another: python3.14 -m kiln fleet ..., or python3.13, python3.12, python3.11",
        )
    clone_check_and_requirement_lists.require_clone("kiln fleet", root)
    return _ensure_environment_in(root / FLEET_FOLDER, (FLEET, COLLECTIONS), say)


def has_fleet_environment(root: Path) -> bool:
    """Return whether the environment for ``kiln fleet`` is there and up to date."""
    return (
        sys.version_info >= OLDEST_FOR_THE_FLEET
        and not examine_environment(root / FLEET_FOLDER, (FLEET, COLLECTIONS)).reason
    )


def _ensure_environment_in(folder: Path, locks: Sequence[str], say: Callable[[str], None]) -> Path:
    """Return the Python of the environment in ``folder``, after creating it if needed."""
    if examine_environment(folder, locks).reason:
        if "_ARGCOMPLETE" in os.environ:
            sys.exit(1)  # a shell's completion does not wait for an environment
        from kiln.bootstrap.venv_creation import create_environment

        try:
            create_environment(folder, locks, say)
        except KeyboardInterrupt as stop:
            what = f"the set-up of {folder} was interrupted"
            raise Interrupted(what, hint="the next run starts it again") from stop
    return environment_python(folder)


def _print_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
