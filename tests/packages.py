"""Conda packages made by hand, for tests that need one to read or to change."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from typing import TYPE_CHECKING

from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def conda_package(path: Path, info: Mapping[str, object]) -> Path:
    """Write a .conda file whose metadata is ``info``: file names below info/ with their JSON values."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, value in info.items():
            data = json.dumps(value).encode()
            member = tarfile.TarInfo(f"info/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("info/link")
        link.type, link.linkname = tarfile.SYMTYPE, "index.json"
        tar.addfile(link)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("metadata.json", "{}")
        file.writestr(f"pkg-{path.stem}.tar.zst", b"payload")
        file.writestr(f"info-{path.stem}.tar.zst", zstd.compress(archive.getvalue()))
    return path
