"""Conda packages made by hand, for tests that need one to read or to change."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

from kiln.base.zstd import zstd

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def release_package(
    folder: Path,
    name: str,
    version: str = "1",
    build: str = "0",
    *,
    payload: Mapping[str, bytes] | None = None,
    **more: object,
) -> Path:
    """Write a package that is fit to be published, with a file of its own; ``more`` goes into its index.json."""
    payload = {f"share/{name}": name.encode()} if payload is None else payload
    folder.mkdir(parents=True, exist_ok=True)
    index = {"name": name, "version": version, "build": build, "build_number": 0, "subdir": "linux-64", "depends": []}
    info = {
        "index.json": {**index, **more},
        "about.json": {"license": "CC0-1.0"},
        "paths.json": {"paths": [_path(path, data) for path, data in payload.items()], "paths_version": 1},
        "run_exports.json": {"weak": [f"{name} >={version}"]},
        "licenses/LICENCE": "do as you like",
    }
    return conda_package(folder / f"{name}-{version}-{build}.conda", info, payload=payload)


def python_stand_in(folder: Path, version: str = f"{sys.version_info.major}.{sys.version_info.minor}") -> Path:
    """Write a package that stands for a Python: it runs the one of these tests, in containers the system's."""
    program = f"""#!/bin/sh
python={sys.executable}; test -x "$python" || python=/usr/bin/python3  # a container
PYTHONPATH="$(echo "${{0%/bin/*}}"/lib/python*/site-packages)" exec "$python" "$@"
"""
    payload = dict.fromkeys(("bin/python", "bin/python3", f"bin/python{version}"), program.encode())
    return release_package(folder, "python", f"{version}.0", payload=payload)


def compiler_stand_in(folder: Path, program: str = "gcc", platform: str = "linux-64", more: str = "") -> Path:
    """Write a package that stands for conda-forge's compiler of C: at its activation it names one of this machine."""
    hook = f"export CC={shutil.which(program)} {more}\n".encode()
    payload = {f"etc/conda/activate.d/activate-gcc_{platform}.sh": hook}
    return release_package(folder, f"gcc_{platform}", "14", payload=payload)


def hostile_package(
    folder: Path, name: str, paths: Iterable[str], links: Mapping[str, str] | None = None, **more: object
) -> Path:
    """Write a package that holds ``share/NAME`` and some links, and says that it installs ``paths``."""
    folder.mkdir(parents=True, exist_ok=True)
    index = {"name": name, "version": "1", "build": "0", "build_number": 0, "subdir": "linux-64", "depends": []}
    links = links or {}
    listed = [
        *(_path(path, name.encode()) for path in paths),
        *({**_path(link, b""), "path_type": "softlink"} for link in links),
    ]
    info = {"index.json": {**index, **more}, "about.json": {}, "paths.json": {"paths": listed, "paths_version": 1}}
    return conda_package(folder / f"{name}-1-0.conda", info, payload={f"share/{name}": name.encode()}, links=links)


def conda_package(
    path: Path,
    info: Mapping[str, object],
    *,
    payload: Mapping[str, bytes] | None = None,
    links: Mapping[str, str] | None = None,
    mtime: int = 0,
) -> Path:
    """Write a .conda file whose metadata is ``info``: file names below info/ with their JSON values.

    ``payload`` are the files that it installs, all of the moment ``mtime``, ``links`` additional symbolic links.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, value in info.items():
            is_text = isinstance(value, str) and (name.endswith(".yaml") or name.startswith("recipe/"))
            data = str(value).encode() if is_text else json.dumps(value).encode()
            member = tarfile.TarInfo(f"info/{name}")
            member.size = len(data)
            member.mode = 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("info/link")
        link.type, link.linkname = tarfile.SYMTYPE, "index.json"
        tar.addfile(link)
    with zipfile.ZipFile(path, "w") as file:
        members = {
            "metadata.json": b'{"conda_pkg_format_version": 2}',
            f"pkg-{path.stem}.tar.zst": _payload(payload, links or {}, mtime),
            f"info-{path.stem}.tar.zst": zstd.compress(archive.getvalue()),
        }
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), data)  # of no moment, so the same is the same again
    return path


def _path(name: str, data: bytes) -> dict[str, object]:
    digest = hashlib.sha256(data).hexdigest()
    return {"_path": name, "path_type": "hardlink", "sha256": digest, "size_in_bytes": len(data)}


def _payload(payload: Mapping[str, bytes] | None, links: Mapping[str, str], mtime: int) -> bytes:
    if payload is None and not links:
        return b"payload"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in (payload or {}).items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(data), mtime, 0o755 if name.startswith("bin/") else 0o644
            tar.addfile(member, io.BytesIO(data))
        for name, aim in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, aim
            tar.addfile(member)
    return zstd.compress(archive.getvalue())
