"""Small disks, which only root may mount."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def mounted(disk: Path, size: str) -> Iterator[None]:
    """Mount a file system of a size, such as ``64m``, at a new folder; skip the test where that is not allowed."""
    disk.mkdir()
    mount = subprocess.run(
        ("mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk), capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield
    finally:
        subprocess.run(("umount", "--lazy", disk), check=True)
