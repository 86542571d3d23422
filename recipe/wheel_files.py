"""Finds the one wheel of a folder and writes chosen members of it, straight from the archive to where they belong."""

from __future__ import annotations

import calendar
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")

WHEEL_NAME = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)-cp3(?P<python>\d+)-[^-]+-[^-]+\.whl")
# Copies large members without holding them in memory, and without a call for every few bytes.
CHUNK = 1 << 20


class BadWheel(Exception):
    """The wheel is not usable for this recipe; the text says what is wrong and what was expected."""


@dataclass(frozen=True)
class Item:
    """One member of the wheel and its target file."""

    member: zipfile.ZipInfo
    target: Path


def the_wheel(folder: Path, *, version: str, python: str | None) -> Path:
    """Return the only wheel of a folder, after checking its version and, if given, its minor of Python 3."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        names = ", ".join(path.name for path in wheels) or "none"
        raise BadWheel(f"{folder} must hold exactly one wheel; found {names}")
    parts = WHEEL_NAME.fullmatch(wheels[0].name)
    if not parts or parts["version"] != version:
        raise BadWheel(f"{wheels[0].name} is not a wheel of version {version} for one CPython")
    if python and python != parts["python"]:
        raise BadWheel(f"{wheels[0].name} is for Python 3.{parts['python']}, the prefix has Python 3.{python}")
    return wheels[0]


def files(wheel: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the wheel's files; raise BadWheel for a name that leads out of the target folder."""
    members = [member for member in wheel.infolist() if not member.is_dir()]
    for member in members:
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts:
            raise BadWheel(f"the wheel has a file with the name {member.filename}")
    return members


def content(wheel: zipfile.ZipFile, name: str) -> bytes:
    """Return the content of a member."""
    try:
        return wheel.read(name)
    except KeyError:
        raise BadWheel(f"the wheel has no {name}") from None


def is_of_macos(wheel: zipfile.ZipFile) -> bool:
    """Return whether a wheel is for macOS, by its name."""
    return "-macosx_" in str(wheel.filename)


def library_file(wheel: zipfile.ZipFile, name: str, version: str = "") -> str:
    """Return the name of a library's file, of a version or the linker's, on the wheel's system."""
    dotted = f".{version}" if version else ""
    return f"lib{name}{dotted}.dylib" if is_of_macos(wheel) else f"lib{name}.so{dotted}"


def extract(wheel: zipfile.ZipFile, items: Sequence[Item]) -> None:
    """Write each member to its target, in parallel (inflating releases the GIL) and the largest first."""
    for folder in {item.target.parent for item in items}:
        folder.mkdir(parents=True, exist_ok=True)
    in_parallel(lambda item: extract_one(wheel, item), sorted(items, key=lambda item: -item.member.file_size))


def in_parallel(function: Callable[[T], None], values: Iterable[T]) -> None:
    """Call a function with each value, in threads: what decompresses and writes releases the GIL."""
    with ThreadPoolExecutor(min(4, int(os.environ.get("CPU_COUNT") or os.cpu_count() or 1))) as pool:
        for _ in pool.map(function, values):
            pass


def extract_one(wheel: zipfile.ZipFile, item: Item) -> None:
    """Write one member with the wheel's date and executable bit, so that builds are reproducible."""
    with wheel.open(item.member) as source, item.target.open("wb") as target:
        shutil.copyfileobj(source, target, CHUNK)
    item.target.chmod(0o755 if item.member.external_attr >> 16 & 0o111 else 0o644)
    stamp(item)


def written(item: Item, data: bytes) -> None:
    """Write a text of the wheel that was changed, with the date of its member."""
    item.target.parent.mkdir(parents=True, exist_ok=True)
    item.target.write_bytes(data)
    item.target.chmod(0o644)
    stamp(item)


def copied(source: Path, item: Item) -> None:
    """Copy a file that is not in the wheel, with the date of a member."""
    if not source.is_file():
        raise BadWheel(f"the compile left no {source.name} in {source.parent}")
    item.target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, item.target)
    item.target.chmod(0o755)
    stamp(item)


def stamp(item: Item) -> None:
    """Set a file's date to its member's, in UTC, because a wheel's dates have no time zone."""
    when = calendar.timegm((*item.member.date_time, 0, 0, 0))
    os.utime(item.target, (when, when))


def link(path: Path, target: Path) -> None:
    """Create a relative link at a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))
