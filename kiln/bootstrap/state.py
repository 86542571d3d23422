"""What an environment was made from, and whether it is still the one that is wanted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RUN, TEST = "run.txt", "test.txt"
FOLDER = ".venv"
MARKER = "kiln-environment.json"
LOCK = "kiln-environment.lock"


class State(NamedTuple):
    """What an environment lacks: ``reason`` is empty when nothing, ``mendable`` when packages can just be added."""

    reason: str
    mendable: bool


CURRENT = State("", mendable=True)


def examine(root: Path, locks: Sequence[str]) -> State:
    """Say whether the environment of the clone at ``root`` holds what ``locks`` name, and can still run."""
    folder = root / FOLDER
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
    if not _same_interpreter(root, marker):
        return State("the Python behind it is gone or another", mendable=False)
    return CURRENT if digests.keys() >= set(locks) else State("the packages of the tests are missing", mendable=True)


def recorded_locks(root: Path) -> list[str]:
    """The lock files whose packages the environment holds."""
    return list(json.loads((root / FOLDER / MARKER).read_bytes())["locks"])


def write_marker(root: Path, digests: Mapping[str, str]) -> None:
    """Record, in one step, what the environment was made from."""
    folder = root / FOLDER
    marker = {"folder": _told(folder), "locks": digests, "abi": abi(), "interpreter": _identity(root)}
    beside = folder / f"{MARKER}.new"
    beside.write_text(json.dumps(marker, indent=1))
    beside.replace(folder / MARKER)


def digest(root: Path, name: str) -> str:
    """The SHA-256 of a lock file."""
    import hashlib

    return hashlib.sha256((root / "requirements" / name).read_bytes()).hexdigest()


def python_of(root: Path) -> Path:
    """The environment's interpreter, by the name that makes it know its packages."""
    return root / FOLDER / "bin" / "python"


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


def _identity(root: Path) -> list[str | int]:
    """What tells an interpreter from another without starting it: real path, size, time of change."""
    real = python_of(root).resolve()
    status = real.stat()
    return [_told(real), status.st_size, status.st_mtime_ns]


def _same_interpreter(root: Path, marker: Mapping[str, object]) -> bool:
    """Whether the environment's packages still fit its Python; a mere patch release does not part them."""
    try:
        return marker.get("interpreter") == _identity(root) or marker.get("abi") == _ask_abi(python_of(root))
    except OSError:
        return False


def _ask_abi(python: Path) -> str:
    import subprocess

    code = "import sys, sysconfig; print(sysconfig.get_config_var('SOABI') or sys.implementation.cache_tag)"
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False).stdout.strip()
