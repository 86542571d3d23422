"""A conda channel in a folder: packages added, and indexed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import files, rattler_process
from kiln.name_rules import existing_subdirs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


UNINDEXED = ".unindexed"  # exists in the channel while the index may differ from the files in any way
ADDED = ".unindexed-added"  # exists while the index only lacks packages
SUBDIRS = ("linux-64", "noarch")  # of every channel that is made here


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalChannel:
    """A channel in the folder ``root``."""

    root: Path

    @property
    def url(self) -> str:
        """The channel's URL, as conda clients take it."""
        return self.root.absolute().as_uri()

    @property
    def subdirs(self) -> tuple[str, ...]:
        """The channel's folders of packages; those of a channel that is made here are among them."""
        return (*SUBDIRS, *(name for name in existing_subdirs(self.root) if name not in SUBDIRS))

    def package_path(self, package: Path, subdir: str) -> Path:
        """Return the path of a package file in the channel; raises NotWritable for a link that leads out of it."""
        return files.safe_path_inside(self.root / subdir / package.name, self.root, links=True)

    def add(self, packages: Iterable[tuple[Path, str]], *, index: bool = True) -> tuple[Path, ...]:
        """Add package files, each with its subdir, index the channel, and return their paths there.

        A file is linked where the file system can, and appears whole or not at all. After a run killed between the two
        steps, the next one repairs the index, see ``repair_index``; so does a caller that adds many without ``index``.
        """
        places = {self.package_path(package, subdir): package for package, subdir in packages}
        replaced = any(place.exists() for place in places)
        self._mark_unindexed(UNINDEXED if replaced else ADDED)
        for place, package in places.items():
            files.link_or_copy(package, place)
        if index:
            self._index_packages()
        return tuple(places)

    def remove_other_packages(self, names: Iterable[str]) -> None:
        """Remove the packages with other file names, and index the channel when there were any."""
        names = frozenset(names)
        stale = [package for package in self.packages() if package.name not in names]
        if stale:
            self._mark_unindexed()
            for package in stale:
                package.unlink()
            self._index_packages()

    def packages(self) -> tuple[Path, ...]:
        """Return the package files of the channel."""
        return tuple(file for subdir in self.subdirs for file in sorted((self.root / subdir).glob("*.conda")))

    def package_names(self) -> frozenset[str]:
        """Return the names of all packages in the channel."""
        return frozenset(package.name.rsplit("-", 2)[0] for package in self.packages())

    @property
    def is_unindexed(self) -> bool:
        """True while the index differs from the files."""
        return any((self.root / mark).exists() for mark in (UNINDEXED, ADDED))

    def repair_index(self) -> None:
        """Index a channel whose index is missing or unfinished, and remove half-written files.

        Where packages were only added, the others are not read again.
        """
        for subdir in self.subdirs:
            folder = files.safe_path_inside(self.root / subdir, self.root, links=True)
            folder.mkdir(parents=True, exist_ok=True)
            files.remove_part_files(folder)
        indexed = all((self.root / subdir / "repodata.json").is_file() for subdir in self.subdirs)
        if not indexed:
            self._mark_unindexed()
        if self.is_unindexed:
            self._index_packages()

    def _mark_unindexed(self, mark: str = UNINDEXED) -> None:
        files.create_empty_file(self.root / mark)

    def _index_packages(self) -> None:
        force = (self.root / UNINDEXED).exists()
        self._mark_unindexed()  # a run that is killed meanwhile may leave any index
        for subdir in self.subdirs:
            folder = files.safe_path_inside(self.root / subdir, self.root, links=True)
            folder.mkdir(parents=True, exist_ok=True)
            for index in folder.glob("repodata*"):
                files.safe_path_inside(index, self.root, links=True)
        with files.full_disk_as_kiln_error(self.root):
            rattler_process.run_operation("index", root=str(self.root.absolute()), force=force)
        for mark in (ADDED, UNINDEXED):
            files.remove(self.root / mark)
