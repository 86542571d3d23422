"""What an environment was made from, and whether it is still the one that is wanted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RUN, TEST, FLEET = "run.txt", "test.txt", "fleet.txt"
COLLECTIONS = "collections.txt"  # not installed as it is: of its one wheel, a part is unpacked
FOLDER, FLEET_FOLDER = ".venv", ".venv-fleet"
MARKER = "kiln-environment.json"
LOCK = "kiln-environment.lock"


class State(NamedTuple):
    """What an environment lacks: ``reason`` is empty when nothing, ``mendable`` when packages can just be added."""

    reason: str
    mendable: bool


CURRENT = State("", mendable=True)


def examine(folder: Path, locks: Sequence[str]) -> State:
    """Say whether the environment in ``folder``, at the top of a clone, has what ``locks`` name, and can still run."""
    root = folder.parent
    try:
        marker = json.loads((folder / MARKER).read_bytes())
        made_here, digests = marker["folder"] == _told(folder), dict(marker["locks"])
    except (FileNotFoundError, NotADirectoryError):
        begun = (folder / LOCK).exists() and len(list(folder.iterdir())) > 1
        return State("the last set-up did not end" if begun else "first run", mendable=False)
    except (ValueError, KeyError, TypeError):
        return State("its marker file is damaged", mendable=False)
    if not made_here:
        return State("the folder was moved", mendable=False)
    if any(digests[name] != digest(root, name) for name in locks if name in digests):
        return State("the list of packages changed", mendable=False)
    if not _same_interpreter(folder, marker):
        return State("the Python behind it is gone or another", mendable=False)
    return CURRENT if digests.keys() >= set(locks) else State("the packages of the tests are missing", mendable=True)


def recorded_locks(folder: Path) -> list[str]:
    """The lock files whose packages the environment holds."""
    return list(json.loads((folder / MARKER).read_bytes())["locks"])


def write_marker(folder: Path, digests: Mapping[str, str]) -> None:
    """Record, in one step, what the environment was made from."""
    marker = {"folder": _told(folder), "locks": digests, "abi": abi(), "interpreter": _identity(folder)}
    beside = folder / f"{MARKER}.new"
    beside.write_text(json.dumps(marker, indent=1))
    beside.replace(folder / MARKER)


def digest(root: Path, name: str) -> str:
    """The SHA-256 of a lock file."""
    import hashlib

    return hashlib.sha256((root / "requirements" / name).read_bytes()).hexdigest()


def python_of(folder: Path) -> Path:
    """The environment's interpreter, by the name that makes it know its packages."""
    return folder / "bin" / "python"


def base_python() -> Path:
    """This Python outside any virtual environment, by its real name: ``python3`` may mean another after an upgrade."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def abi() -> str:
    """What compiled packages of this Python are made for, ``cpython-311-x86_64-linux-gnu`` for one."""
    import sysconfig

    return str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag)


def _told(path: Path) -> str:
    """A path as text that is the same in every locale."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _identity(folder: Path) -> list[str | int]:
    """What tells an interpreter from another without starting it: real path, size, time of change."""
    real = python_of(folder).resolve()
    status = real.stat()
    return [_told(real), status.st_size, status.st_mtime_ns]


def _same_interpreter(folder: Path, marker: Mapping[str, object]) -> bool:
    """Whether the environment's packages still fit its Python; a mere patch release does not part them."""
    try:
        return marker.get("interpreter") == _identity(folder) or marker.get("abi") == _ask_abi(python_of(folder))
    except OSError:
        return False


def _ask_abi(python: Path) -> str:
    import subprocess

    code = "import sys, sysconfig; print(sysconfig.get_config_var('SOABI') or sys.implementation.cache_tag)"
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False).stdout.strip()
