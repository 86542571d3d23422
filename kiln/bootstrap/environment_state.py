"""The record of an environment's locks and interpreter, and the check whether it is current."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kiln.operating_system.venv_layout import PYTHON

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RUN, TEST, FLEET = "run.txt", "test.txt", "fleet.txt"
COLLECTIONS = "collections.txt"  # not installed with pip: part of its only wheel is unpacked
FOLDER, FLEET_FOLDER = ".venv", ".venv-fleet"
MARKER = "kiln-environment.json"
LOCK = "kiln-environment.lock"


class EnvironmentState(NamedTuple):
    """The state of an environment: ``reason`` is empty when current, ``completable`` when only packages are missing."""

    reason: str
    completable: bool


CURRENT = EnvironmentState("", completable=True)


def examine_environment(folder: Path, locks: Sequence[str]) -> EnvironmentState:
    """Return the state of the environment in ``folder``, at the top of a clone: its packages, its Python."""
    root = folder.parent
    try:
        marker = json.loads((folder / MARKER).read_bytes())
        same_folder, digests = marker["folder"] == _locale_independent_path(folder), dict(marker["locks"])
    except (FileNotFoundError, NotADirectoryError):
        unfinished = (folder / LOCK).exists() and len(list(folder.iterdir())) > 1
        return EnvironmentState("the last set-up did not end" if unfinished else "first run", completable=False)
    except (ValueError, KeyError, TypeError):
        return EnvironmentState("its marker file is damaged", completable=False)
    if not same_folder:
        return EnvironmentState("the folder was moved", completable=False)
    if any(digests[name] != requirements_digest(root, name) for name in locks if name in digests):
        return EnvironmentState("the list of packages changed", completable=False)
    if not _is_interpreter_compatible(folder, marker):
        return EnvironmentState("its Python is missing or another one", completable=False)
    return (
        CURRENT
        if digests.keys() >= set(locks)
        else EnvironmentState("the packages of the tests are missing", completable=True)
    )


def has_marker_for_folder(folder: Path) -> bool:
    """Return whether an environment's marker names this folder, and not the one that a link leads to."""
    try:
        return bool(json.loads((folder / MARKER).read_bytes())["folder"] == _locale_independent_path(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def installed_requirement_files(folder: Path) -> list[str]:
    """Return the lock files whose packages the environment has."""
    return list(json.loads((folder / MARKER).read_bytes())["locks"])


def write_environment_marker(folder: Path, digests: Mapping[str, str]) -> None:
    """Record, atomically, the environment's locks and interpreter."""
    marker = {
        "folder": _locale_independent_path(folder),
        "locks": digests,
        "abi": python_abi(),
        "interpreter": _interpreter_identity(folder),
    }
    temporary = folder / f"{MARKER}.new"
    temporary.write_bytes(json.dumps(marker, indent=1).encode())
    temporary.replace(folder / MARKER)


def requirements_digest(root: Path, name: str) -> str:
    """Return the SHA-256 of a lock file."""
    import hashlib

    return hashlib.sha256((root / "requirements" / name).read_bytes()).hexdigest()


def environment_python(folder: Path) -> Path:
    """Return the environment's interpreter, by the path through which it finds its packages."""
    return folder / PYTHON


def base_python() -> Path:
    """Return this Python outside any virtual environment, as a real path: an upgrade may change ``python3``."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def python_abi() -> str:
    """Return the ABI of this Python's compiled packages, such as ``cpython-311-x86_64-linux-gnu``."""
    import sysconfig

    return str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag)


def _locale_independent_path(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _interpreter_identity(folder: Path) -> list[str | int]:
    """Return the identity of an interpreter without starting it: real path, size, time of change."""
    real = environment_python(folder).resolve()
    status = real.stat()
    return [_locale_independent_path(real), status.st_size, status.st_mtime_ns]


def _is_interpreter_compatible(folder: Path, marker: Mapping[str, object]) -> bool:
    """Return whether the environment's packages fit its Python; a patch release does not change that."""
    try:
        return marker.get("interpreter") == _interpreter_identity(folder) or marker.get("abi") == _query_python_abi(
            environment_python(folder)
        )
    except OSError:
        return False


def _query_python_abi(python: Path) -> str:
    import subprocess

    code = "import sys, sysconfig; print(sysconfig.get_config_var('SOABI') or sys.implementation.cache_tag)"
    return subprocess.run([python, "-I", "-c", code], capture_output=True, encoding="utf-8", check=False).stdout.strip()
