"""Changes of a channel whose files kiln writes, other than a publication: withdraw, patch and reindex packages."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from kiln.errors import BrokenPackage, ProvenanceBroken, UsageError
from kiln.publish import attestation_sidecars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from kiln.publish.stores.index import ChannelIndex
    from kiln.publish.stores.store_publication import StoreTarget
    from kiln.repodata.editable_index import SubdirIndex
    from kiln.repodata.index_entry import IndexEntry


def yank_packages(target: StoreTarget, names: Sequence[str], *, delete: bool = False) -> tuple[str, ...]:
    """Withdraw packages from the index, by their names or paths, and return the paths; ``delete`` removes the files."""
    with _locked_channel_index(target) as index:
        paths = [index.find_package_path(name) for name in names]
        index.withdraw_packages(set(paths), _with_packages_deleted if delete else _with_packages_withdrawn)
        for path in paths if delete else ():
            target.store.remove(path)
            attestation_sidecars.remove_sidecars(target.store, path)
    return tuple(paths)


def patch_record(target: StoreTarget, name: str, fields: Mapping[str, Any]) -> str:
    """Replace fields of a package's record in the index, and return its path; the file is not changed."""
    if attestation_sidecars.FIELD in fields:
        raise UsageError(
            f"{attestation_sidecars.FIELD} is not patched", hint="--reindex sets it from the files of attestations"
        )
    with _locked_channel_index(target) as index:
        path = index.find_package_path(name)
        name_of_subdir, _, file = path.partition("/")
        index.edit_subdirs(
            lambda subdir: subdir.with_patched_record(file, fields) if subdir.name == name_of_subdir else subdir
        )
    return path


def reindex_channel(target: StoreTarget, read: Callable[[str], IndexEntry]) -> tuple[int, tuple[BrokenPackage, ...]]:
    """Index the files in the channel; only those that the index does not have are read.

    Returns how many packages were read, and the errors of those that the index leaves out: a record of a file that no
    client could install would only mislead solvers. New files of attestations are taken into the index, too.
    """
    with _locked_channel_index(target) as index:
        subdirs = index.subdir_indexes()
        files = {name: target.store.package_sizes(name) for name in subdirs}
        removed = {
            f"{name}/{file}" for name in subdirs for file in subdirs[name].files_next_to_index - files[name].keys()
        }
        unknown = [
            f"{name}/{file}"
            for name in subdirs
            for file, size in files[name].items()
            if file.endswith(".conda") and subdirs[name].records.get(file, {}).get("size") != size
        ]
        entries, broken = _read_index_entries(unknown, read)
        entries = [attestation_sidecars.adopt_existing_sidecar(target.store, entry) for entry in entries]
        removed |= broken.keys()
        hashes, invalid = _adopt_new_sidecars(target, subdirs, {*unknown, *removed})

        def reindexed_subdir(subdir: SubdirIndex) -> SubdirIndex:
            missing = {path.partition("/")[2] for path in removed if path.startswith(f"{subdir.name}/")}
            changed = subdir.without_packages(missing - subdir.removed_files).with_packages(entries)
            return changed.with_field_of_records_set(attestation_sidecars.FIELD, hashes.get(subdir.name, {}))

        index.edit_subdirs(reindexed_subdir)
    return len(entries), (*broken.values(), *invalid)


def _adopt_new_sidecars(
    target: StoreTarget, subdirs: Mapping[str, SubdirIndex], but: AbstractSet[str]
) -> tuple[dict[str, dict[str, str]], list[BrokenPackage]]:
    """Return the hashes of new sidecars of packages in the index, by subdir and file, and errors of invalid ones."""
    hashes: dict[str, dict[str, str]] = {}
    invalid = []
    for name, subdir in subdirs.items():
        records = subdir.records
        attested = (path.removesuffix(attestation_sidecars.ENDING) for path in target.store.sidecar_paths(f"{name}/"))
        for path in attested:
            file = path.partition("/")[2]
            if file not in records or path in but:
                continue
            try:
                if sha256 := attestation_sidecars.write_content_addressed_sidecar(target.store, path, records[file]):
                    hashes.setdefault(name, {})[file] = sha256
            except (BrokenPackage, ProvenanceBroken) as error:
                invalid.append(BrokenPackage(f"{path}{attestation_sidecars.ENDING}: {error.what}", why=error.why))
    return hashes, invalid


@contextlib.contextmanager
def _locked_channel_index(target: StoreTarget) -> Iterator[ChannelIndex]:
    """Hold the channel while no publication is under way."""
    with target.exclusive_lock():
        target.journal.require_no_pending_publication()
        yield target.channel_index


def _read_index_entries(
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


def _with_packages_withdrawn(subdir: SubdirIndex, names: AbstractSet[str]) -> SubdirIndex:
    return subdir.with_packages_withdrawn(subdir.records.keys() & names)


def _with_packages_deleted(subdir: SubdirIndex, names: AbstractSet[str]) -> SubdirIndex:
    return subdir.without_packages(names).with_packages_withdrawn(subdir.records.keys() & names)
