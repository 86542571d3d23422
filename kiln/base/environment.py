"""An environment's clone, locks and interpreter, whether it is current, and the errors of creating one."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from kiln.base.errors import DiskFull, DownloadFailed, HashMismatch, MissingTool, NotWritable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


PACKAGE = Path(__file__).parents[1]


def requirements_file(name: str) -> Path:
    """Return a hash-locked list of packages: the clone's, or the copy in kiln's wheel."""
    path = PACKAGE.parent / "requirements" / name
    return path if path.is_file() else PACKAGE / "requirements" / name


def require_clone(what: str, root: Path = PACKAGE.parent) -> None:
    """Check that kiln runs from a clone, whose playbooks and lists of packages ``what`` needs.

    Raises:
        MissingTool: pip has installed it.
    """
    if not all((root / name).exists() for name in ("build-locally.py", "requirements/run.txt", "ansible")):
        raise MissingTool(
            f"{what} needs a clone of kiln's repository, and this kiln is in {root}",
            why="its playbooks and the files that it sends to workers are not part of the installed package",
            hint="in a clone: python build-locally.py --help, then .venv/bin/kiln -C FEEDSTOCK ...",
        )


_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_NETWORK = ("connection", "name resolution", "timed out", "proxy", "certificate")
_MIN_FREE = 50 << 20  # bytes; pip alone needs more
_SPACE_HINT = "free some space: kiln's environment takes 400 MB, and as much again while pip unpacks"


def raise_pip_error(tail: str, folder: Path) -> NoReturn:
    """Raise the error for the end of pip's output; ``folder`` is the folder in which it worked."""
    _raise_when_disk_full(tail, folder)
    why = _last_output_lines(tail)
    if "DO NOT MATCH THE HASHES" in tail:
        raise HashMismatch(
            "a package is not the file whose hash was locked",
            why=why,
            hint="a mirror or a proxy may have altered it; if upstream did, the lists in requirements/ must be updated",
        )
    hint = "check that the index has these versions, and use a Python from 3.10 to 3.14"
    if any(word in tail.lower() for word in _NO_NETWORK):
        hint = "check the network; behind a proxy set HTTPS_PROXY, for a mirror PIP_INDEX_URL"
    raise DownloadFailed("pip could not fetch the packages that kiln runs on", why=why, hint=hint)


def raise_venv_error(tail: str, base: Path, folder: Path) -> NoReturn:
    """Raise the error for the end of the output of ``python -m venv``; ``folder`` is the folder in which it worked."""
    _raise_when_disk_full(tail, folder)
    raise MissingTool(f"{base} could not make an environment", why=_last_output_lines(tail), hint="try another Python")


def raise_os_error(failure: OSError, folder: Path) -> NoReturn:
    """Raise the error that corresponds to an operating system's error, or that error itself."""
    if failure.errno in _FULL:
        raise DiskFull("the disk is full", why=str(failure), hint=_SPACE_HINT) from failure
    if failure.errno in _FORBIDDEN:
        hint = "work in a clone of your own, on a disk that can be written"
        raise NotWritable(f"{folder} cannot be written", why=str(failure), hint=hint) from failure
    raise failure


def _raise_when_disk_full(tail: str, folder: Path) -> None:
    """Raise DiskFull when the step's output says so, or when the disk is full (ensurepip's own pip prints nothing)."""
    import shutil

    lines = [line.strip() for line in tail.splitlines() if any(os.strerror(number) in line for number in _FULL)]
    free = shutil.disk_usage(folder).free
    if lines or free < _MIN_FREE:
        raise DiskFull(
            "the disk is full", why=(lines or [f"{free >> 20} MB are left in {folder}"])[-1], hint=_SPACE_HINT
        )


def _last_output_lines(tail: str) -> str:
    """Return the last lines of a step's output: of pip's retries only the last one, with long lines cut."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    retries = [line for line in lines if line.startswith("WARNING: Retrying")]
    shown_lines = [line for line in lines if line not in retries[:-1] and not line.startswith("WARNING: Location")]
    return "\n       ".join(line if len(line) <= 300 else f"{line[:300]} [...]" for line in shown_lines[-5:])


RUN, TEST, FLEET = "run.txt", "test.txt", "fleet.txt"
COLLECTIONS = "collections.txt"  # not installed with pip: part of its only wheel is unpacked
FOLDER, FLEET_FOLDER = ".venv", ".venv-fleet"
PYTHON, PROGRAM = Path("bin", "python"), Path("bin", "kiln")
# Without -I, Python would import a folder kiln of the current directory, which may be another's checkout.
PROGRAM_TEXT = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec "$here/python" -I -m kiln "$@"
"""
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
    code = "import sys, sysconfig; print(sysconfig.get_config_var('SOABI') or sys.implementation.cache_tag)"
    try:
        if marker.get("interpreter") == _interpreter_identity(folder):
            return True
        import subprocess

        words = [str(environment_python(folder)), "-I", "-c", code]
        asked = subprocess.run(words, capture_output=True, encoding="utf-8", check=False)
        return marker.get("abi") == asked.stdout.strip()
    except OSError:
        return False
