"""Wheels for tests, written file by file."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from kiln.build.test.specs import WheelName

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CP = f"cp{PYTHON.replace('.', '')}"


def written(folder: Path, name: str, files: dict[str, bytes], requires: str = "") -> Path:
    """Write a wheel whose name is ``name`` with files and its metadata."""
    parts = WheelName.from_path(Path(name))
    info = f"{parts.name}-{parts.version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {parts.name}\nVersion: {parts.version}\n{requires}\n"
    tag = f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: {parts.tags}\n"
    whole = {**files, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": tag.encode()}
    record = "".join(f"{item},sha256=AAAA,{len(data)}\n" for item, data in whole.items()) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / name, "w") as archive:
        for item, data in {**whole, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(item, data)
    return folder / name
