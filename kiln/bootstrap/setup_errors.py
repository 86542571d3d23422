"""The errors of creating an environment, with hints on what to do."""

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
    lines = [line.strip() for line in tail.splitlines() if any(os.strerror(number) in line for number in _FULL)]
    free = shutil.disk_usage(folder).free
    if lines or free < _MIN_FREE:
        raise DiskFull(
            "the disk is full", why=(lines or [f"{free >> 20} MB are left in {folder}"])[-1], hint=_SPACE_HINT
        )


def _last_output_lines(tail: str, max_lines: int = 5, max_length: int = 300) -> str:
    """Return the last lines of a step's output: of pip's retries only the last one, with long lines cut."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    retries = [line for line in lines if line.startswith("WARNING: Retrying")]
    shown_lines = [line for line in lines if line not in retries[:-1] and not line.startswith("WARNING: Location")]
    return "\n       ".join(
        line if len(line) <= max_length else f"{line[:max_length]} [...]" for line in shown_lines[-max_lines:]
    )
