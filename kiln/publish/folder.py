"""A channel in a folder, behind any web server or none: its index changes at one moment, for all subdirs at once.

The index files of a subdir are links into ``.kiln/index/current``, itself a link to one generation; a new generation
is written beside and ``current`` renamed over, which the file system does whole or not at all.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln import files
from kiln.repodata import BASE, SHARDS

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from pathlib import Path

OWN = ".kiln"
KEPT = 2  # generations: a reader may be in the middle of the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """The files of a channel below ``root``."""

    root: Path
    seen: dict[str, tuple[os.stat_result, str]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The folder's path."""
        return str(self.root)

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing: all changes at one moment."""
        return ()

    @property
    def stepwise(self) -> bool:
        """All subdirs change at one moment."""
        return False

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[None]:
        """Hold the folder's lock, which goes with the process; sweeps out what a killed one left half-written."""
        with files.no_room_as_disk_full(self.root), files.locked(self.root / OWN / "lock"):
            swept = (*self.root.glob("*/"), *self.root.glob("*/*/"), *self.root.glob(f"{OWN}/staging/*/*/"))
            for folder in (self.root / OWN, self.root / OWN / "index", *swept):
                files.remove_leftovers(folder)
            yield

    def read(self, path: str) -> bytes | None:
        """Return a file's content; none of kiln's own record where another tool has indexed the folder since."""
        if path.endswith(f"/{BASE}") and not (self.root / path).with_name("repodata.json").is_symlink():
            return None
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        """Write a file beside its place and rename it."""
        files.write_bytes(self.root / path, data)

    def create(self, path: str, data: bytes) -> bool:
        """Write a file unless there is one; the lock keeps others out meanwhile."""
        if (self.root / path).exists():
            return False
        self.write(path, data)
        return True

    def has(self, path: str, sha256: str) -> bool:
        """Return whether a file has this content; it is read for that, unless it is untouched since it was put here."""
        place = self.root / path
        if not place.is_file():
            return False
        before, known = self.seen.get(path, (None, ""))
        if before is None or _identity(before) != _identity(place.stat()):
            known = files.sha256(place)
        return known == sha256

    def put(self, file: Path, path: str, sha256: str) -> None:
        """Link a file, or copy it from another file system; a copy is read again."""
        place = self.root / path
        files.link_or_copy(file, place)
        if place.samefile(file):
            self.seen[path] = (place.stat(), sha256)

    def move(self, source: str, target: str) -> None:
        """Rename a file."""
        (self.root / target).parent.mkdir(parents=True, exist_ok=True)
        (self.root / source).replace(self.root / target)
        if source in self.seen:
            self.seen[target] = self.seen.pop(source)

    def remove(self, path: str) -> None:
        """Remove a file or a folder."""
        files.remove(self.root / path)

    def names(self, subdir: str) -> dict[str, int]:
        """Return the package files of a subdir."""
        return {file.name: file.stat().st_size for file in (self.root / subdir).glob("*.conda")}

    def swap(self, forms: Mapping[str, Mapping[str, bytes]]) -> None:
        """Write a new generation of the index and make it the current one."""
        index = self.root / OWN / "index"
        if not self._is_ours(forms):
            self._adopt(index, forms)
        new = _next(index)
        with files.replacing(new) as generation:
            for subdir, told in forms.items():
                self._write(generation / subdir, subdir, told)
        _point(index / "current", new.name)
        self._tidy(index, forms)

    def url(self, path: str) -> str:
        """Return a folder of the channel as a URL."""
        return (self.root / path).absolute().as_uri()

    def _write(self, folder: Path, subdir: str, told: Mapping[str, bytes]) -> None:
        """Write one subdir's files; shards, named by their content, lie where all generations find them."""
        files.write_all(folder, {name: told[name] for name in _named(told)})
        shards = self.root / subdir / SHARDS
        there = {file.name for file in shards.glob("*.zst")}
        new = {name.split("/")[1]: data for name, data in told.items() if name.startswith(f"{SHARDS}/")}
        files.write_all(shards, {name: data for name, data in new.items() if name not in there})

    def _is_ours(self, forms: Mapping[str, Mapping[str, bytes]]) -> bool:
        """Whether every name in the subdirs leads to the current generation already."""
        return all((self.root / subdir / name).is_symlink() for subdir, told in forms.items() for name in _named(told))

    def _adopt(self, index: Path, forms: Mapping[str, Mapping[str, bytes]]) -> None:
        """Make what lies in the subdirs, if anything, the current generation, and have all names lead there."""
        first = _next(index)
        with files.replacing(first) as generation:
            for subdir, told in forms.items():
                (generation / subdir).mkdir(parents=True)
                for name in _named(told):
                    if (place := self.root / subdir / name).is_file():
                        shutil.copy2(place, generation / subdir / name)
        _point(index / "current", first.name)
        for subdir, told in forms.items():
            for name in _named(told):
                _point(self.root / subdir / name, f"../{OWN}/index/current/{subdir}/{name}")

    def _tidy(self, index: Path, forms: Mapping[str, Mapping[str, bytes]]) -> None:
        generations = sorted(index.glob("[0-9]*"))
        for old in generations[:-KEPT]:
            files.remove(old)
        for subdir, told in forms.items():
            self._forget_shards(self.root / subdir / SHARDS, {name.split("/")[-1] for name in told})

    @staticmethod
    def _forget_shards(folder: Path, needed: set[str]) -> None:
        """Remove the shards that were not needed before this generation either: those marked the last time."""
        marked = folder / ".old"
        old = set(marked.read_text().split()) if marked.is_file() else set()
        now = {file.name for file in folder.glob("*.zst")} - needed
        for name in old & now:
            files.remove(folder / name)
        files.write_text(marked, "\n".join(sorted(now - old)))


def _point(link: Path, aim: str) -> None:
    """Have a link lead elsewhere from one moment to the next."""
    link.parent.mkdir(parents=True, exist_ok=True)
    part = link.with_name(f".{link.name}.link.part")
    files.remove(part)
    part.symlink_to(aim)
    part.replace(link)


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return what changes when a file does."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _next(index: Path) -> Path:
    """Return where the next generation lies."""
    return index / f"{1 + max((int(each.name) for each in index.glob('[0-9]*')), default=0):06d}"


def _named(told: Mapping[str, bytes]) -> list[str]:
    """Return the names of an index that do not tell their content."""
    return [name for name in told if not name.startswith(f"{SHARDS}/")]
