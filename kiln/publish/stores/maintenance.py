"""Changes of a channel whose files kiln writes, other than a publication: withdraw, patch and reindex packages."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kiln.errors import BrokenPackage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    from kiln.publish.stores.index import ChannelIndex
    from kiln.publish.stores.target import StoreTarget
    from kiln.repodata import IndexEntry, Subdir


def yank(target: StoreTarget, names: Sequence[str], *, delete: bool = False) -> tuple[str, ...]:
    """Withdraw packages from the index, by their names or paths, and return the paths; ``delete`` removes the files."""
    with _exclusively(target) as index:
        paths = [index.path_of(name) for name in names]
        index.withdraw(set(paths), _deleted if delete else _withdrawn)
        for path in paths if delete else ():
            target.store.remove(path)
    return tuple(paths)


def patch(target: StoreTarget, name: str, fields: Mapping[str, Any]) -> str:
    """Replace fields of a package's record in the index, and return its path; the file is not changed."""
    with _exclusively(target) as index:
        path = index.path_of(name)
        name_of_subdir, _, file = path.partition("/")
        index.change(lambda subdir: subdir.patched(file, fields) if subdir.name == name_of_subdir else subdir)
    return path


def reindex(target: StoreTarget, read: Callable[[str], IndexEntry]) -> tuple[int, tuple[BrokenPackage, ...]]:
    """Index the files in the channel; only those that the index does not have are read.

    Returns how many packages were read, and the errors of those that the index leaves out: a record of a file that no
    client could install would only mislead solvers.
    """
    with _exclusively(target) as index:
        subdirs = index.subdirs()
        files = {name: target.store.names(name) for name in subdirs}
        removed = {f"{name}/{file}" for name in subdirs for file in subdirs[name].fetched_here - files[name].keys()}
        unknown = [
            f"{name}/{file}"
            for name in subdirs
            for file, size in files[name].items()
            if file.endswith(".conda") and subdirs[name].records.get(file, {}).get("size") != size
        ]
        entries, broken = _read_all(unknown, read)
        removed |= broken.keys()

        def updated(subdir: Subdir) -> Subdir:
            missing = {path.partition("/")[2] for path in removed if path.startswith(f"{subdir.name}/")}
            return subdir.without(missing - subdir.removed).with_packages(entries)

        index.change(updated)
    return len(entries), tuple(broken.values())


@contextlib.contextmanager
def _exclusively(target: StoreTarget) -> Iterator[ChannelIndex]:
    """Hold the channel while no publication is under way."""
    with target.exclusively():
        target.journal.require_free()
        yield target.contents


def _read_all(
    paths: Sequence[str], read: Callable[[str], IndexEntry]
) -> tuple[list[IndexEntry], dict[str, BrokenPackage]]:
    """Return the entries of the packages that can be read, and the errors of the others by path."""
    entries, broken = [], {}
    for path in paths:
        try:
            entry = read(path)
        except BrokenPackage as error:
            broken[path] = error
            continue
        if entry.path == path:
            entries.append(entry)
        else:
            broken[path] = BrokenPackage(f"{path} is a package of the subdir {entry.subdir}", hint="move it there")
    return entries, broken


def _withdrawn(subdir: Subdir, names: AbstractSet[str]) -> Subdir:
    return subdir.withdrawn(subdir.records.keys() & names)


def _deleted(subdir: Subdir, names: AbstractSet[str]) -> Subdir:
    return subdir.without(names).withdrawn(subdir.records.keys() & names)
