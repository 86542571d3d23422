"""Writes the metadata of an installed Python package (dist-info) from that of a wheel."""

from __future__ import annotations

import base64
import csv
import hashlib
import re
from typing import TYPE_CHECKING

from wheel_files import BadWheel, content, files

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

# The wheel's metadata requires it, but no module of the wheel imports it, and no conda package has this name.
UNUSED_REQUIREMENT = re.compile(r"Requires-Dist: libclang\b")


def folder_in(wheel: zipfile.ZipFile) -> str:
    """Return the name of the wheel's metadata folder."""
    folders = {name.split("/")[0] for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)}
    if len(folders) != 1:
        raise BadWheel(f"the wheel must have one dist-info folder; it has {len(folders)}")
    return folders.pop()


def write(
    wheel: zipfile.ZipFile,
    folder: Path,
    *,
    package: Callable[[str], bool],
    changed: Mapping[str, Path],
    links: Iterable[str],
) -> None:
    """Write the metadata into a folder ``NAME-VERSION.dist-info``, under that name whatever the wheel is called.

    RECORD then lists the wheel's members for which `package` says yes, with new hashes for those in `changed` (name in
    the wheel to file on disk), and the `links`, which have none.
    """
    source = folder_in(wheel)
    texts = {m.filename.split("/", 1)[1]: wheel.read(m) for m in files(wheel) if m.filename.startswith(f"{source}/")}
    texts["METADATA"] = renamed(texts["METADATA"].decode(), name=folder.name.split("-")[0]).encode()
    texts["INSTALLER"] = b"conda\n"
    old = csv.reader(content(wheel, f"{source}/RECORD").decode().splitlines())
    rows = [row for row in old if row and package(row[0]) and row[0] not in changed]
    rows += [[path, *fingerprint(file.read_bytes())] for path, file in changed.items()]
    rows += [[f"{folder.name}/{path}", *fingerprint(text)] for path, text in texts.items() if path != "RECORD"]
    rows += [[path, "", ""] for path in (*links, f"{folder.name}/RECORD")]
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text)
    with (folder / "RECORD").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(sorted(rows))


def renamed(metadata: str, *, name: str) -> str:
    """Return core metadata under another distribution name and without the requirement that nothing uses."""
    head, blank, body = metadata.partition("\n\n")
    lines = [line for line in head.split("\n") if not UNUSED_REQUIREMENT.match(line)]
    lines = [f"Name: {name}" if line.startswith("Name: ") else line for line in lines]
    return "\n".join(lines) + blank + body


def fingerprint(text: bytes) -> tuple[str, str]:
    """Return the two columns of RECORD behind the path: hash and size (PyPA, recording installed projects)."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
    return f"sha256={digest}", str(len(text))
