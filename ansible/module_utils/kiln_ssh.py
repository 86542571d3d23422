"""The settings with which ssh reaches a worker: one key, one known host key, nothing from the user's own files."""

from __future__ import annotations

from typing import Any


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
