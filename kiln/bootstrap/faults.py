"""What went wrong while the environment was made, in words that say what to do."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING, NoReturn

from kiln.errors import DiskFull, DownloadFailed, HashMismatch, MissingTool, NotWritable

if TYPE_CHECKING:
    from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_NETWORK = ("connection", "name resolution", "timed out", "proxy", "certificate")
_LITTLE = 50 << 20  # bytes; pip alone takes more
_ROOM = "free some: kiln's environment takes 400 MB, and as much again while pip unpacks"


def explain_pip(tail: str, folder: Path) -> NoReturn:
    """Raise the failure that pip's last words tell of; ``folder`` is where it worked."""
    _raise_when_full(tail, folder)
    why = _last_lines(tail)
    if "DO NOT MATCH THE HASHES" in tail:
        raise HashMismatch(
            "a package is not the file whose hash was locked",
            why=why,
            hint="a mirror or a proxy may have altered it; where upstream did, docs/how-to/update-the-locks.md",
        )
    hint = "check that the index has these versions, and use a Python from 3.10 to 3.13"
    if any(word in tail.lower() for word in _NO_NETWORK):
        hint = "check the network; behind a proxy set HTTPS_PROXY, for a mirror PIP_INDEX_URL"
    raise DownloadFailed("pip could not fetch the packages that kiln runs on", why=why, hint=hint)


def explain_venv(tail: str, base: Path, folder: Path) -> NoReturn:
    """Raise the failure that the last words of ``python -m venv`` tell of; ``folder`` is where it worked."""
    _raise_when_full(tail, folder)
    raise MissingTool(f"{base} could not make an environment", why=_last_lines(tail), hint="try another Python")


def explain_os_error(failure: OSError, folder: Path) -> NoReturn:
    """Raise the failure that an error of the operating system stands for, or the error itself."""
    if failure.errno in _FULL:
        raise DiskFull("the disk is full", why=str(failure), hint=_ROOM) from failure
    if failure.errno in _FORBIDDEN:
        hint = "work in a clone of your own, on a disk that can be written"
        raise NotWritable(f"{folder} cannot be written", why=str(failure), hint=hint) from failure
    raise failure


def _raise_when_full(tail: str, folder: Path) -> None:
    """Raise DiskFull where the step says so, or where it says little (ensurepip's own pip is silent) and it is so."""
    lines = [line.strip() for line in tail.splitlines() if any(os.strerror(number) in line for number in _FULL)]
    left = shutil.disk_usage(folder).free
    if lines or left < _LITTLE:
        raise DiskFull("the disk is full", why=(lines or [f"{left >> 20} MB are left in {folder}"])[-1], hint=_ROOM)


def _last_lines(tail: str, most: int = 5, longest: int = 300) -> str:
    """The end of what a step said: of pip's many attempts on a dead network only the last, long lines cut."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    retries = [line for line in lines if line.startswith("WARNING: Retrying")]
    kept = [line for line in lines if line not in retries[:-1] and not line.startswith("WARNING: Location")]
    return "\n       ".join(line if len(line) <= longest else f"{line[:longest]} [...]" for line in kept[-most:])
