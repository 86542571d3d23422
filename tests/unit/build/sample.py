"""Small wheels, and the content of packages made from them."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kiln.base.zstd import zstd
from kiln.build.rehearsal.python_search import Interpreter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

METADATA = "Metadata-Version: 2.1\nName: small\nVersion: 1.2\nSummary: A small one\nLicense: MIT\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def interpreter(executable: Path, base: Path, **changes: Any) -> Interpreter:
    """A Python 3.12 of the usual layout."""
    stdlib = base / "lib/python3.12"
    found = Interpreter(
        executable=executable,
        version="3.12.1",
        base_prefix=base,
        stdlib=stdlib,
        lib_dynload=stdlib / "lib-dynload",
        include=None,
        libraries=(),
        standard_layout=True,
    )
    return replace(found, **changes)


def contents(**changes: str) -> dict[str, str]:
    """The members of a good wheel; keyword names are files of its dist-info."""
    described = {"METADATA": METADATA, "WHEEL": WHEEL, "RECORD": "", **changes}
    files = {f"small-1.2.dist-info/{name.replace('__', '.')}": text for name, text in described.items()}
    return {"small/__init__.py": "answer = 42\n", **files}


def make_wheel(
    folder: Path, members: Mapping[str, str] | None = None, name: str = "small-1.2-py3-none-any.whl", mode: int = 0o644
) -> Path:
    """Write a wheel with these members, all of one mode."""
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in (members or contents()).items():
            info = zipfile.ZipInfo(member)
            info.external_attr = mode << 16
            archive.writestr(info, text)
    return path


def unpacked(package: Path) -> dict[str, tarfile.TarInfo]:
    """The members of a .conda file, payload and metadata together."""
    return {member.name: member for part in ("pkg", "info") for member in _tar(package, part)}


def content(package: Path, path: str) -> bytes:
    """The content of one file of a .conda file."""
    file = _tar(package, "info" if path.startswith("info/") else "pkg").extractfile(path)
    assert file is not None
    return file.read()


def info(package: Path, name: str) -> Any:
    """One JSON file of a package's metadata."""
    return json.loads(content(package, f"info/{name}.json"))


def _tar(package: Path, part: str) -> tarfile.TarFile:
    with zipfile.ZipFile(package) as archive:
        data = archive.read(f"{part}-{package.stem}.tar.zst")
    return tarfile.open(fileobj=io.BytesIO(zstd.decompress(data)))
