"""The store of a channel in a folder."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kiln.base import files as base_files
from kiln.base.errors import SystemFault
from kiln.base.patterns import existing_subdirs
from kiln.conda.index import PACKAGES, SHARDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


STATE = ".kiln"
GENERATIONS = 2  # to keep: a reader may be in the middle of the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderStore:
    """The files of a channel below ``root``."""

    notes: ClassVar[tuple[str, ...]] = ()
    changes_stepwise: ClassVar[bool] = False

    root: Path

    @property
    def name(self) -> str:
        """The folder's path."""
        return str(self.root)

    @contextlib.contextmanager
    def exclusive_lock(self) -> Iterator[None]:
        """Hold the folder's lock, which ends with the process; remove what a killed one left half-written."""
        with (
            base_files.full_disk_as_kiln_error(self.root),
            base_files.held_lock_file(self.safe_write_path(f"{STATE}/lock")),
        ):
            folders = (*self.root.glob("*/"), *self.root.glob("*/*/"), *self.root.glob(f"{STATE}/staging/*/*/"))
            for folder in (self.root / STATE, self.root / STATE / "index", *folders):
                if folder.resolve().is_relative_to(self.root.resolve()):
                    base_files.remove_part_files(folder)
            yield

    def read(self, path: str) -> bytes | None:
        """Return a file's content."""
        place = self.root / path
        try:
            if kind := base_files.special_kind(place.stat()):  # who opens a pipe may wait for ever
                raise SystemFault(f"{place} is {kind}, not a file", hint="move it to another folder")
            return place.read_bytes()
        except FileNotFoundError:
            return None

    def safe_write_path(self, path: str) -> Path:
        """Return the path of a file to write: below the folder, with no link on the way that leads out of it."""
        return base_files.safe_path_inside(self.root / path, self.root, links=True)

    def write(self, path: str, data: bytes) -> None:
        """Write a file under another name and rename it."""
        base_files.write_bytes(self.safe_write_path(path), data)

    def write_if_absent(self, path: str, data: bytes) -> bool:
        """Write a file unless there is one; the lock keeps other processes out meanwhile."""
        if (self.root / path).exists():
            return False
        self.write(path, data)
        return True

    def has_file_with_hash(self, path: str, sha256: str) -> bool:
        """Return whether a file has this content; it is read for that."""
        place = self.root / path
        return place.is_file() and base_files.sha256(place) == sha256

    def store_package(self, file: Path, path: str, sha256: str) -> None:  # noqa: ARG002 - of buckets
        """Copy a file: a link would change with what was built, and with every other channel that has it."""
        base_files.copy(file, self.safe_write_path(path))

    def move(self, source: str, target: str) -> None:
        """Rename a file."""
        place = self.safe_write_path(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        self.safe_write_path(source).replace(place)

    def remove(self, path: str) -> None:
        """Remove a file or a folder."""
        base_files.remove(self.safe_write_path(path))

    def subdirs(self) -> tuple[str, ...]:
        """Return the subdirs that the folder has."""
        return existing_subdirs(self.root)

    def package_sizes(self, subdir: str) -> dict[str, int]:
        """Return the package files of a subdir."""
        packages = (file for ending in PACKAGES for file in (self.root / subdir).glob(f"*{ending}"))
        return {file.name: (file if file.is_file() else file.parent).stat().st_size for file in packages}

    def sidecar_paths(self, path: str) -> tuple[str, ...]:
        """Return the files of attestations of one package, or of all in a folder."""
        subdir, _, start = path.rpartition("/")
        files_there = (self.root / subdir).glob("*.sigs*")
        names = (file.name for file in files_there if file.name.startswith(f"{start}.sigs" if start else ""))
        return tuple(sorted(f"{subdir}/{name}" for name in names))

    def replace_indexes(self, forms: Mapping[str, Mapping[str, bytes]]) -> None:
        """Write a new generation of the index and make it current."""
        index = self.safe_write_path(f"{STATE}/index")
        for subdir in forms:
            self.safe_write_path(f"{subdir}/{SHARDS}")
        if not self._is_linked_to_generation(forms):
            self._adopt_existing_index_files(index, forms)
        new = _next_generation_folder(index)
        with base_files.atomic_replacement(new) as generation:
            for subdir, contents in forms.items():
                names = _non_shard_file_names(contents)
                base_files.write_files(generation / subdir, {name: contents[name] for name in names})
                self._write_shards(subdir, contents)
        _replace_link(index / "current", new.name)
        self._remove_old_generations(index, forms)

    def url(self, path: str) -> str:
        """Return a folder of the channel as a URL."""
        return (self.root / path).absolute().as_uri()

    def _write_shards(self, subdir: str, contents: Mapping[str, bytes]) -> None:
        shards = self.root / subdir / SHARDS
        existing = {file.name for file in shards.glob("*.zst")}
        needed = {name.split("/")[1]: data for name, data in contents.items() if name.startswith(f"{SHARDS}/")}
        base_files.write_files(shards, {name: data for name, data in needed.items() if name not in existing})

    def _is_linked_to_generation(self, forms: Mapping[str, Mapping[str, bytes]]) -> bool:
        """Return whether every name in the subdirs is a link to the current generation already."""
        return all(
            (self.root / subdir / name).is_symlink()
            for subdir, contents in forms.items()
            for name in _non_shard_file_names(contents)
        )

    def _adopt_existing_index_files(self, index: Path, forms: Mapping[str, Mapping[str, bytes]]) -> None:
        """Make the files in the subdirs, if there are any, the current generation, and link all names to it."""
        first = _next_generation_folder(index)
        with base_files.atomic_replacement(first) as generation:
            for subdir, contents in forms.items():
                (generation / subdir).mkdir(parents=True)
                for name in _non_shard_file_names(contents):
                    if (place := self.root / subdir / name).is_file():
                        shutil.copy2(place, generation / subdir / name)
        _replace_link(index / "current", first.name)
        for subdir, contents in forms.items():
            for name in _non_shard_file_names(contents):
                _replace_link(self.root / subdir / name, f"../{STATE}/index/current/{subdir}/{name}")

    def _remove_old_generations(self, index: Path, forms: Mapping[str, Mapping[str, bytes]]) -> None:
        generations = sorted(index.glob("[0-9]*"))
        for old in generations[:-GENERATIONS]:
            base_files.remove(old)
        for subdir, contents in forms.items():
            self._remove_unneeded_shards(subdir, contents)

    def _remove_unneeded_shards(self, subdir: str, contents: Iterable[str]) -> None:
        """Remove the shards that the generation before did not need either: those marked the last time."""
        folder, needed = self.root / subdir / SHARDS, {name.split("/")[-1] for name in contents}
        marks = folder / ".old"
        marked = set(marks.read_text(encoding="utf-8").split()) if marks.is_file() else set()
        unneeded = {file.name for file in folder.glob("*.zst")} - needed
        for name in marked & unneeded:
            base_files.remove(folder / name)
        base_files.write_text(marks, "\n".join(sorted(unneeded - marked)))


def _replace_link(link: Path, destination: str) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    part = link.with_name(f".{link.name}.link.part")
    base_files.remove(part)
    part.symlink_to(destination)
    part.replace(link)


def _next_generation_folder(index: Path) -> Path:
    return index / f"{1 + max((int(folder.name) for folder in index.glob('[0-9]*')), default=0):06d}"


def _non_shard_file_names(contents: Mapping[str, bytes]) -> list[str]:
    """Return the names of an index's files that are not named by their content."""
    return [name for name in contents if not name.startswith(f"{SHARDS}/")]
