"""The settings with which ssh reaches a worker: one key, one known host key, nothing from the user's own files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import process
from kiln.base.errors import SystemFault

if TYPE_CHECKING:
    from collections.abc import Mapping


def create_key_pair(path: Path, comment: str, environment: Mapping[str, str]) -> None:
    """Write a new private key, and the public one next to it (``.pub``)."""
    argv = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path)
    result = process.capture(argv, env=environment)
    if not result.ok:
        raise SystemFault("ssh-keygen has made no key", why=result.tail)


def sockets(folder: Path) -> Path:
    """Return the folder of a run's shared connections, whose path is short enough for sockets, unlike many a TMPDIR."""
    return Path("/tmp", f"kiln-ssh-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}")  # noqa: S108 - see sharing


def shared(folder: Path) -> dict[str, Any]:
    """Return the options by which the connections of a run are shared, one for each address, port and user."""
    return {"ControlMaster": "auto", "ControlPersist": 60, "ControlPath": f"{sockets(folder)}/%C"}


def sharing(folder: Path, *, is_new: bool) -> dict[str, Any]:
    """Return the options of a new connection that is shared from now on, or of one that uses what is open.

    In a folder of another user's nothing is shared: their sockets could answer in the place of a worker.
    """
    try:
        is_own = sockets(folder).stat().st_uid == os.getuid()
    except FileNotFoundError:
        is_own = False
    return {**shared(folder), "ControlMaster": "yes" if is_new else "no"} if is_own else {"ControlPath": "none"}


def settings(*, user: str, port: int, key: object, known_hosts: object, alias: str) -> dict[str, Any]:
    """Return the options of ssh; the paths must not hold a double quote."""
    return {
        "User": user,
        "Port": port,
        "IdentityFile": f'"{key}"',
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "HostKeyAlias": alias,
        "UserKnownHostsFile": f'"{known_hosts}"',
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": 15,
        "ServerAliveInterval": 15,
        "ServerAliveCountMax": 4,
    }
