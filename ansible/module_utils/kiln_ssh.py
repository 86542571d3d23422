"""The settings with which ssh reaches a worker: one key, one known host key, nothing from the user's own files."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any


def sockets(folder: Path) -> Path:
    """Return the folder of a run's shared connections, which is short enough for the paths of sockets."""
    return Path(tempfile.gettempdir(), f"kiln-ssh-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}")


def control_path(folder: Path) -> str:
    """Return ssh's pattern of the sockets, one for each address, port and user."""
    return f"{sockets(folder)}/%C"


def open_connections(folder: Path) -> str:
    """Return ssh's pattern of the sockets that a run has left open; ``none`` unless this user has created them."""
    try:
        is_own = sockets(folder).stat().st_uid == os.getuid()
    except FileNotFoundError:
        is_own = False
    return control_path(folder) if is_own else "none"


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
    }
