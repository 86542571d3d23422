"""Bazel's disk caches: a folder for each key, with a note beside it of what it is for, and their sizes kept in bounds.

Bazel's own keys hold an action's command line, environment and inputs. What it does not see is in kiln's key: the image
or the machine's own compilers, and the variant. A key whose inputs are no longer built is only a waste of room, so what
is removed is a whole key, the least used first; of the last one, the oldest entries.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A cache on the disk: ``label`` says what it is for, ``size`` is in bytes, ``used`` in seconds since the epoch."""

    key: str
    label: str
    size: int
    used: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """All caches below a folder."""

    root: Path

    def folder(self, key: str) -> Path:
        """Return where Bazel keeps a key's cache."""
        return self.root / key

    @property
    def nothing(self) -> Path:
        """An empty folder, to be seen in the place of all caches by who may see only one."""
        return self.root / ".nothing"

    def _note(self, key: str) -> Path:
        return self.root / f"{key}.json"

    def prepare(self, key: str) -> None:
        """Have the folders that a container is to see."""
        for folder in (self.nothing, self.folder(key)):
            folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def using(self, key: str, label: str) -> Iterator[Path]:
        """Yield a key's folder, made when it is not there, which nobody removes during the block."""
        self.prepare(key)
        with self._note(key).open("a+", encoding="utf-8") as note:
            fcntl.flock(note, fcntl.LOCK_SH)
            self.folder(key).mkdir(exist_ok=True)  # who removed it held the lock until now
            if note.tell() == 0:
                note.write(json.dumps({"label": label}))
                note.flush()
            try:
                yield self.folder(key)
            finally:
                os.utime(note.fileno())

    def entries(self) -> tuple[Entry, ...]:
        """Return all caches, the one used last first."""
        found = (self._entry(note) for note in self.root.glob("*.json"))
        return tuple(sorted(found, key=lambda entry: -entry.used))

    def _entry(self, note: Path) -> Entry:
        key = note.stem
        try:
            label = str(json.loads(note.read_text(encoding="utf-8"))["label"])
        except (ValueError, LookupError, TypeError):
            label = "unknown"
        return Entry(key=key, label=label, size=files.size_on_disk(self.folder(key)), used=note.stat().st_mtime)

    def trim(self, bound: int, *, keep: Collection[str] = ()) -> int:
        """Bring all caches together below ``bound`` bytes and return the bytes that were freed.

        Whole keys go first, but for those in ``keep`` and those in use; then the oldest entries of what is left.
        """
        entries = self.entries()
        excess = sum(entry.size for entry in entries) - bound
        freed = 0
        for entry in to_remove(entries, excess, keep=keep):
            freed += self.remove(entry)
        for entry in reversed(self.entries()):
            if freed < excess:
                freed += self._thin(entry, excess - freed)
        return freed

    def make_room(self, needed: int, *, keep: Collection[str]) -> int:
        """Remove whole caches until ``needed`` bytes of the disk are free, none of ``keep``; returns what was freed."""
        there = next(place for place in (self.root, *self.root.parents) if place.exists())
        missing = needed - shutil.disk_usage(there).free
        if missing <= 0:
            return 0
        return sum(self.remove(entry) for entry in to_remove(self.entries(), missing, keep=keep))

    def remove(self, entry: Entry) -> int:
        """Remove a cache and return the bytes that this freed: none when somebody uses it."""
        with self._alone(entry.key) as alone:
            if not alone:
                return 0
            files.remove(self.folder(entry.key))
            files.remove(self._note(entry.key))
        return entry.size

    def _thin(self, entry: Entry, wanted: int) -> int:
        """Remove the oldest entries of a cache; Bazel takes an action whose outputs are gone for one never seen."""
        freed = 0
        with self._alone(entry.key) as alone:
            for file in sorted(_files(self.folder(entry.key)), key=lambda each: each.stat().st_mtime) if alone else ():
                if freed >= wanted:
                    break
                freed += 512 * file.stat().st_blocks
                file.unlink()
        return freed

    @contextlib.contextmanager
    def _alone(self, key: str) -> Iterator[bool]:
        with self._note(key).open("a+", encoding="utf-8") as note:
            try:
                fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True


def to_remove(entries: tuple[Entry, ...], excess: int, *, keep: Collection[str] = ()) -> tuple[Entry, ...]:
    """Return the caches to remove so that ``excess`` bytes are freed, the least used first, none of ``keep``."""
    chosen: list[Entry] = []
    for entry in sorted(entries, key=lambda each: each.used):
        if sum(each.size for each in chosen) >= excess:
            break
        if entry.key not in keep:
            chosen.append(entry)
    return tuple(chosen)


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names)
