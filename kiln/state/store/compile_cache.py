"""The caches that configs' compiles share: their keys, their folders, a limit on their size."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files
from kiln.base.patterns import lazy_pattern
from kiln.base.system import files as system_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from kiln.recipe.feedstock import BuildConfig


def json_digest(value: object) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def folder_digest(folder: Path, *, without: Iterable[str] = ()) -> str:
    """Return a hash over the names and contents of all files below a folder, without some names at its top level."""
    left_out = {folder / name for name in without}
    paths = [file for file in files.files_below(folder) if file not in left_out]
    return json_digest([(str(file.relative_to(folder)), files.sha256(file)) for file in paths])


def file_or_folder_digest(path: Path) -> str:
    """Return a hash over the content of a file, or of all files below a folder, if any."""
    return files.sha256(path) if path.is_file() else folder_digest(path)


# Variant keys that may differ between configs that share a cache: Python and related keys, the image, whose digest
# counts instead of its name, and the channels.
PYTHONS = frozenset({"python", "python_impl", "python_min", "is_python_min", "numpy", "interpreter"})
ELSEWHERE = frozenset({"docker_image", "channel_sources", "channel_targets", "build_number_decrement"})
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "ld", "as", "nvcc", "bazel")


def compile_cache_name(config: BuildConfig, *, where: str) -> str:
    """Return the name of the cache that a config's compile uses: a hash of the inputs other than sources.

    ``where`` is the digest of the image, or the hash of a machine's own compilers. All of the variant counts (compiler,
    CUDA, flags, platform) except the keys that differ between Pythons. Sources, command lines and environment are in
    Bazel's own keys, inside a cache.
    """
    zipped = {key for group in config.zip_keys if "python" in group for key in group}
    zipped = zipped - {"cuda_compiler_version"}  # it counts even where CUDA and Python are zipped
    left_out = PYTHONS | ELSEWHERE | zipped
    variant = {key: values for key, values in config.variant.items() if key not in left_out}
    return json_digest([config.platform, variant, where])[:16]


def toolchain_digest(path: str) -> str:
    """Return a hash of the compilers on a PATH: their paths, sizes and modification times."""
    programs = [shutil.which(name, path=path) for name in COMPILERS]
    return json_digest([_path_size_and_mtime(Path(program).resolve()) for program in programs if program])


def _path_size_and_mtime(program: Path) -> tuple[str, int, int]:
    status = program.stat()
    return str(program), status.st_size, status.st_mtime_ns


# An entry's path: results of actions in ac, files in cas, since Bazel 2 in folders by the first two digits of the hash;
# since Bazel 7 below the name of another hash function than SHA-256.
ENTRY = lazy_pattern(r"(?:[a-z0-9]{3,16}/)?(ac|cas)/(?:[0-9a-f]{2}/)?([0-9a-f]{32,128})")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCacheUsage:
    """A cache on the disk: ``label`` says what it is for, ``size`` is in bytes, ``used`` in seconds since the epoch."""

    key: str
    label: str
    size: int
    used: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCaches:
    """All caches below a folder."""

    root: Path

    def folder(self, key: str) -> Path:
        """Return the folder of a key's cache."""
        return files.safe_path_inside(self.root / key, self.root)

    def _purpose_note_path(self, key: str) -> Path:
        return files.safe_path_inside(self.root / f"{key}.json", self.root)

    def create_folder(self, key: str) -> None:
        """Create the folder, so that a container can mount it."""
        self.folder(key).mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def locked_folder(self, key: str, label: str) -> Iterator[Path]:
        """Yield a key's folder, created if missing, and keep it from being removed during the block."""
        self.create_folder(key)
        note = self._open_note_with_shared_lock(key)
        try:
            self.folder(key).mkdir(exist_ok=True)  # another process may have removed it before it released the lock
            if os.fstat(note).st_size == 0:  # two processes may write the same at once, each from the beginning
                os.write(note, json.dumps({"label": label}).encode())
            yield self.folder(key)
        finally:
            os.utime(note)
            os.close(note)

    def _open_note_with_shared_lock(self, key: str) -> int:
        """Open a key's note, locked against removal; retry if it was removed before it was locked."""
        while True:
            note = os.open(self._purpose_note_path(key), os.O_RDWR | os.O_CREAT, 0o666)
            system_files.acquire_lock(note, wait=True, shared=True)
            if os.fstat(note).st_nlink:
                return note
            os.close(note)

    def all_caches(self) -> tuple[DiskCacheUsage, ...]:
        """Return all caches, the one used last first."""
        entries = (self._read_cache_note(note) for note in self.root.glob("*.json"))
        return tuple(sorted(filter(None, entries), key=lambda entry: -entry.used))

    def _read_cache_note(self, note: Path) -> DiskCacheUsage | None:
        """Return the cache of a note; None when another process has removed it meanwhile."""
        key = note.stem
        try:
            used, label = note.stat().st_mtime, "unknown"
        except FileNotFoundError:
            return None
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            label = str(json.loads(note.read_text(encoding="utf-8"))["label"])
        return DiskCacheUsage(key=key, label=label, size=files.size_on_disk(self.folder(key)), used=used)

    def trim_to_size(self, bound: int, *, keep: Collection[str] = ()) -> int:
        """Reduce the total size of all caches below ``bound`` bytes, and return the bytes that were freed.

        Whole keys are removed first, except for those in ``keep`` and those in use; then the oldest entries.
        """
        entries = self.all_caches()
        excess = sum(entry.size for entry in entries) - bound
        freed = 0
        for entry in caches_to_remove(entries, excess, keep=keep):
            freed += self.remove_cache(entry)
        for entry in reversed(self.all_caches()):
            if freed < excess:
                freed += self._remove_oldest_entries(entry, excess - freed)
        return freed

    def remove_caches_to_free_space(self, needed: int, *, keep: Collection[str]) -> None:
        """Remove whole caches, none of ``keep``, until ``needed`` bytes of disk are free."""
        excess = needed - shutil.disk_usage(system_files.nearest_existing_path(self.root)).free
        if excess > 0:
            for entry in caches_to_remove(self.all_caches(), excess, keep=keep):
                self.remove_cache(entry)

    def remove_cache(self, entry: DiskCacheUsage) -> int:
        """Remove a cache and return the bytes that were freed: none when it is in use."""
        with self._exclusive_lock(entry.key) as alone:
            if not alone:
                return 0
            files.remove(self.folder(entry.key))
            files.remove(self._purpose_note_path(entry.key))
        return entry.size

    def _remove_oldest_entries(self, entry: DiskCacheUsage, excess: int) -> int:
        """Remove the oldest entries of a cache; Bazel treats an action without its outputs as a new one."""
        freed = 0
        with self._exclusive_lock(entry.key) as alone:
            for file in (
                sorted(_files_below(self.folder(entry.key)), key=lambda path: path.lstat().st_mtime) if alone else ()
            ):
                if freed >= excess:
                    break
                freed += system_files.size_on_disk(file.lstat())
                file.unlink()
        return freed

    @contextlib.contextmanager
    def _exclusive_lock(self, key: str) -> Iterator[bool]:
        """Lock a cache during the block; yield whether that succeeded."""
        try:
            note = self._purpose_note_path(key).open("r+", encoding="utf-8")
        except FileNotFoundError:  # another process has removed it
            yield False
            return
        with note:
            try:
                system_files.acquire_lock(note.fileno(), wait=False)
            except BlockingIOError:
                yield False
            else:
                yield os.fstat(note.fileno()).st_nlink > 0


def caches_to_remove(
    entries: tuple[DiskCacheUsage, ...], excess: int, *, keep: Collection[str] = ()
) -> tuple[DiskCacheUsage, ...]:
    """Return the caches to remove that free ``excess`` bytes, the least recently used first, none of ``keep``."""
    selection: list[DiskCacheUsage] = []
    for entry in sorted(entries, key=lambda entry: entry.used):
        if sum(other.size for other in selection) >= excess:
            break
        if entry.key not in keep:
            selection.append(entry)
    return tuple(selection)


def _files_below(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names)


def cache_entries(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the entries of a cache with their relative paths; files that Bazel is still writing have other names."""
    for path in _files_below(folder):
        name = path.relative_to(folder).as_posix()
        if ENTRY.fullmatch(name):
            yield name, path


def cached_action_count(folder: Path) -> int:
    """Return the number of finished actions in a cache."""
    return sum(1 for name, _ in cache_entries(folder) if is_action_entry(name))


def is_action_entry(name: str) -> bool:
    """Return whether an entry is an action's result."""
    match = ENTRY.fullmatch(name)
    return match is not None and match[1] == "ac"


def expected_entry_hash(name: str) -> str | None:
    """Return the SHA-256 that a file of a cache must have, by its path; None for an entry that is not named by it."""
    match = ENTRY.fullmatch(name)
    return match[2] if match and match[1] == "cas" and name.startswith("cas/") and len(match[2]) == 64 else None
