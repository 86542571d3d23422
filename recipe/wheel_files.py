"""Finds the one wheel of a folder and writes chosen members of it, straight from the archive to where they belong."""

from __future__ import annotations

import calendar
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Sequence

WHEEL_NAME = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)-cp3(?P<python>\d+)-[^-]+-[^-]+\.whl")
# Copies large members without holding them in memory, and without a call for every few bytes.
CHUNK = 1 << 20


class BadWheel(Exception):
    """The wheel is not one that this recipe can be made from; the text says what is wrong and what was expected."""


@dataclass(frozen=True)
class Item:
    """One member of the wheel and the file that it becomes."""

    member: zipfile.ZipInfo
    target: Path


def the_wheel(folder: Path, *, version: str, python: str | None) -> Path:
    """Return the one wheel of a folder, of the version that is wanted and, if given, for this minor of Python 3."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        found = ", ".join(path.name for path in wheels) or "none"
        raise BadWheel(f"{folder} must hold exactly one wheel; found {found}")
    parts = WHEEL_NAME.fullmatch(wheels[0].name)
    if not parts or parts["version"] != version:
        raise BadWheel(f"{wheels[0].name} is not a wheel of version {version} for one CPython")
    if python and python != parts["python"]:
        raise BadWheel(f"{wheels[0].name} is for Python 3.{parts['python']}, the prefix has Python 3.{python}")
    return wheels[0]


def files(wheel: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the wheel's files, refusing a name that leads out of the folder it is extracted to."""
    members = [member for member in wheel.infolist() if not member.is_dir()]
    for member in members:
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts:
            raise BadWheel(f"the wheel has a file with the name {member.filename}")
    return members


def content(wheel: zipfile.ZipFile, name: str) -> bytes:
    """Return what a member holds."""
    try:
        return wheel.read(name)
    except KeyError:
        raise BadWheel(f"the wheel has no {name}") from None


def extract(wheel: zipfile.ZipFile, items: Sequence[Item]) -> None:
    """Write each member to its target, the largest first and several at a time: inflating releases the interpreter."""
    for folder in {item.target.parent for item in items}:
        folder.mkdir(parents=True, exist_ok=True)
    largest_first = sorted(items, key=lambda item: -item.member.file_size)
    with ThreadPoolExecutor(min(4, int(os.environ.get("CPU_COUNT") or os.cpu_count() or 1))) as pool:
        for _ in pool.map(lambda item: extract_one(wheel, item), largest_first):
            pass


def extract_one(wheel: zipfile.ZipFile, item: Item) -> None:
    """Write one member, with the date and the executable bit that the wheel gives it, so that builds repeat."""
    with wheel.open(item.member) as source, item.target.open("wb") as target:
        shutil.copyfileobj(source, target, CHUNK)
    item.target.chmod(0o755 if item.member.external_attr >> 16 & 0o111 else 0o644)
    stamp(item)


def stamp(item: Item) -> None:
    """Give a file the date that its member has; a wheel's dates have no time zone, any will do as long as it is one."""
    when = calendar.timegm((*item.member.date_time, 0, 0, 0))
    os.utime(item.target, (when, when))


def link(path: Path, target: Path) -> None:
    """Put a relative link at a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))
