"""What hands a config's unfinished build on: to the next job of a chain, or to another machine."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import posixpath
import re
import stat
import tarfile
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from kiln.base import files as base_files
from kiln.base.errors import BrokenHandover
from kiln.base.serialization import from_json_values, to_json
from kiln.base.system import files as system_files
from kiln.base.zstd import FAST, compressing_file, zstd
from kiln.conda.package_reader import CheckedTarMember
from kiln.state.store import compile_cache

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class ChainState(str, Enum):
    """The state in which a job leaves a chain."""

    UNFINISHED = "unfinished"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """One job of a chain: its duration in seconds, and the finished actions and steps at its end."""

    seconds: float
    actions: int
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverArchive:
    """The archive of what a chain has made so far: ``size`` and ``unpacked`` in bytes, ``files`` their number."""

    name: str
    size: int
    unpacked: int
    files: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverRecord:
    """The state that one job hands on to the next.

    ``sources`` is a hash of the feedstock's files, ``cache_key`` the name of the compile cache, ``in_container`` where
    the steps were made. A finished chain has no archive, but the hashes of its ``packages`` by their names. ``root`` is
    the folder of the feedstock outside of a container; in one it is the same for all jobs.
    """

    version: int
    config: str
    sources: str
    cache_key: str
    in_container: bool
    state: ChainState
    links: tuple[ChainLink, ...]
    archive: HandoverArchive | None
    packages: tuple[tuple[str, str], ...] = ()
    root: str = ""

    @property
    def total_seconds(self) -> float:
        """The duration of all jobs so far."""
        return sum(link.seconds for link in self.links)


VERSION = 1
RECORD = "handover.json"
LONGEST_RECORD = 1 << 20  # bytes
MOST_FILES = 2_000_000
CACHE, WORK = "cache/", "work/"
ARCHIVE_NAME = re.compile(r"made-[0-9a-f]{16}\.tar\.zst")
OUTPUT_BASE = "DO_NOT_BUILD_HERE"  # a file that Bazel puts into the folder of its own tree
ADVICE = "remove the folder, and the chain begins anew"
_FAULTS = (tarfile.TarError, zstd.ZstdError, EOFError, ValueError, KeyError, OverflowError, RecursionError)
# Of the system, about names that contradict each other, or that no file can have.
_FAULTS_OF_NAMES = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EILSEQ})


def read_handover_record(folder: Path) -> HandoverRecord | None:
    """Return the record of a folder; None when it has none.

    Raises:
        BrokenHandover: the record is invalid.
    """
    path = folder / RECORD
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST_RECORD + 1)
    except FileNotFoundError:
        return None
    try:
        return _parse_handover_record(text)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenHandover(f"{path} is invalid", why=str(error)[:300], hint=ADVICE) from error


def _parse_handover_record(text: bytes) -> HandoverRecord:
    if len(text) > LONGEST_RECORD:
        raise ValueError(f"it has more than {base_files.human_readable_size(LONGEST_RECORD)}")
    data = json.loads(text)
    if data.get("version") != VERSION:
        raise ValueError(f"its version is {data.get('version')!r}, this kiln reads {VERSION}")
    record = from_json_values(HandoverRecord, data, (ChainLink, ChainState, HandoverArchive))
    if record.archive is not None and not ARCHIVE_NAME.fullmatch(record.archive.name):
        raise ValueError("it names an archive outside of the folder")
    return record


def write_handover_record(folder: Path, record: HandoverRecord) -> None:
    """Replace the record of a folder, then remove archives that it does not name."""
    base_files.write_text(folder / RECORD, json.dumps(to_json(record), indent=2) + "\n")
    named = None if record.archive is None else record.archive.name
    for path in folder.iterdir():
        if ARCHIVE_NAME.fullmatch(path.name) and path.name != named:
            base_files.remove(path)


def pack_archive(
    folder: Path, entries: Iterable[tuple[str, Path]]
) -> tuple[HandoverArchive, tuple[tuple[str, str], ...]]:
    """Write files and links into a new archive of the folder; ``entries`` are names in the archive, and paths.

    What cannot be read is left out, and returned with the reasons: a cache may lack any entry, and a step whose results
    are incomplete runs again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    base_files.remove_part_files(folder)
    path, count, size = folder / "made", 0, 0
    unreadable: list[tuple[str, str]] = []
    with base_files.full_disk_as_kiln_error(folder), base_files.atomic_replacement(path) as part:
        with (
            part.open("wb") as sink,
            compressing_file(sink, level=FAST) as packed,
            tarfile.open(fileobj=packed, mode="w|") as tar,
        ):
            for name, source in entries:
                added = _add_member(tar, name, source)
                if isinstance(added, str):
                    unreadable.append((name, added))
                elif added is not None:
                    count, size = count + 1, size + added
        digest = base_files.sha256(part)
    target = folder / f"made-{digest[:16]}.tar.zst"
    path.replace(target)
    archive = HandoverArchive(name=target.name, size=target.stat().st_size, unpacked=size, files=count, sha256=digest)
    return archive, tuple(unreadable)


def _add_member(tar: tarfile.TarFile, name: str, source: Path) -> int | str | None:
    """Add a file or a link, and return its size; None for a link that leads out, or why it cannot be read."""
    try:
        status = source.lstat()
        if stat.S_ISLNK(status.st_mode) and not name.startswith(CACHE):
            return _add_link_member(tar, name, source, status)
        if not stat.S_ISREG(status.st_mode):
            return "the folder cannot be listed" if stat.S_ISDIR(status.st_mode) else "it is not a regular file"
        # Between lstat and this, another program may have put a link or a named pipe into its place.
        descriptor = os.open(source, os.O_RDONLY | system_files.NO_LINK)
    except OSError as error:
        return error.strerror or str(error)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - an opened one
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return "it is not a regular file"
        member = _tar_member(name, status)
        member.size = status.st_size
        tar.addfile(member, file)
    return member.size


def _tar_member(name: str, status: os.stat_result) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mtime, member.mode = int(status.st_mtime), 0o755 if status.st_mode & 0o100 else 0o644
    return member


def _add_link_member(tar: tarfile.TarFile, name: str, source: Path, status: os.stat_result) -> int | None:
    member = _tar_member(name, status)
    member.type, member.linkname = tarfile.SYMTYPE, str(source.readlink())
    root = source.parents[name.count("/") - 1]
    if not _link_text_stays_inside(name, member.linkname) or not _link_resolves_inside(source, root):
        return None
    tar.addfile(member)
    return 0


def newest_cache_entries(folder: Path, bound: int) -> tuple[list[tuple[str, Path]], int]:
    """Return the newest entries of a compile cache that are below ``bound`` bytes, and how many were left out."""
    entries = [
        (*_file_time_and_size(path), f"{CACHE}{name}", path) for name, path in compile_cache.cache_entries(folder)
    ]
    entries.sort(key=lambda entry: -entry[0])
    newest, total = [], 0
    for _, size, name, path in entries:
        total += size
        if total > bound:
            break
        newest.append((name, path))
    return newest, len(entries) - len(newest)


def _file_time_and_size(path: Path) -> tuple[float, int]:
    """Return the time of a file's last change and its size; zeros for one that vanished."""
    try:
        status = path.lstat()
    except OSError:
        return 0.0, 0
    return status.st_mtime, status.st_size


def total_size(entries: Iterable[tuple[str, Path]]) -> int:
    """Return the bytes of files to pack."""
    return sum(_file_time_and_size(path)[1] for _, path in entries)


def work_folder_entries(folder: Path, tops: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files and links below some folders of a config's work folder, without Bazel's own trees.

    Pipes, sockets and folders that cannot be read are among them, since `pack_archive` says what it cannot read.
    """
    for top in sorted(tops):
        place = folder / top
        if place.is_symlink() or not place.is_dir():
            if place.is_file() and not place.is_symlink():
                yield f"{WORK}{top}", place
            continue
        closed: list[OSError] = []
        for root, folders, names in os.walk(place, onerror=closed.append):
            if OUTPUT_BASE in names:
                folders.clear()
                continue
            here = place / os.path.relpath(root, place)
            linked = [name for name in folders if (here / name).is_symlink()]
            for name in sorted([*names, *linked]):
                path = here / name
                yield f"{WORK}{path.relative_to(folder).as_posix()}", path
        for error in closed:
            path = Path(error.filename)
            yield f"{WORK}{path.relative_to(folder).as_posix()}", path


def unpack_archive(folder: Path, archive: HandoverArchive, target: Path, *, bound: int) -> int:
    """Unpack an archive into a new folder; return the number of the cache's entries whose content is not of their name.

    Raises:
        BrokenHandover: it is missing, has another hash, is too large, or has a path that leads out of the folder.
    """
    path = folder / archive.name
    if path.is_symlink() or not path.is_file():
        raise BrokenHandover(f"{path} is missing", why=f"{folder / RECORD} names it", hint=ADVICE)
    if archive.unpacked > bound or archive.files > MOST_FILES:
        raise _too_large_error(path, archive.unpacked, bound)
    if base_files.sha256(path) != archive.sha256:
        raise BrokenHandover(f"{path} has another hash than {RECORD} says", hint=ADVICE)
    base_files.require_disk_space(target, archive.unpacked, for_what="what the job before has handed on")
    try:
        with (
            base_files.full_disk_as_kiln_error(target),
            zstd.ZstdFile(path) as plain,
            tarfile.open(fileobj=plain, mode="r|", tarinfo=CheckedTarMember) as tar,
        ):
            return _unpack_members(tar, target, path, bound)
    except (*_FAULTS, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _FAULTS_OF_NAMES:
            raise
        raise BrokenHandover(f"{path} cannot be unpacked", why=str(error)[:300], hint=ADVICE) from error


def _too_large_error(path: Path, size: int, bound: int) -> BrokenHandover:
    return BrokenHandover(
        f"{path} is too large: {base_files.human_readable_size(size)}",
        why=f"--handover-size allows {base_files.human_readable_size(bound)}, and {MOST_FILES} files",
        hint=ADVICE,
    )


def _unpack_members(tar: tarfile.TarFile, target: Path, path: Path, bound: int) -> int:
    """Write all members; links last, so that neither a file nor another link is written through one."""
    size = count = rejected = 0
    links: dict[str, str] = {}
    for member in tar:
        _require_safe_member(member)
        size, count = size + member.size, count + 1
        if size > bound or count > MOST_FILES:
            raise _too_large_error(path, size, bound)
        if member.issym():
            if member.name in links:
                raise ValueError(f"{member.name[:200]!r} is there twice")
            links[member.name] = member.linkname
            continue
        source = tar.extractfile(member)
        assert source is not None, "a regular file"
        rejected += not _write_verified_member(member, source, target / member.name)
    _create_links(links, target)
    return rejected


def _create_links(links: Mapping[str, str], target: Path) -> None:
    """Make links; none below another one, and none that leads out of the work folder by another one."""
    for name, linked in links.items():
        if any(parent.as_posix() in links for parent in PurePosixPath(name).parents):
            raise ValueError(f"{name[:200]!r} is below a link")
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(linked)
    for name in links:
        if not _link_resolves_inside(target / name, target / WORK):
            raise ValueError(f"the link {name[:200]!r} leads out of its folder")


def _require_safe_member(member: tarfile.TarInfo) -> None:
    name = member.name
    parts = name.split("/")
    if not name.startswith((CACHE, WORK)) or {"", ".", ".."} & set(parts):
        raise ValueError(f"{name[:200]!r} leads out of its folder")
    if name.startswith(CACHE) and not (member.isreg() and compile_cache.ENTRY.fullmatch(name.removeprefix(CACHE))):
        raise ValueError(f"{name[:200]!r} is not an entry of a compile cache")
    if member.issym():
        if not _link_text_stays_inside(name, member.linkname):
            raise ValueError(f"the link {name[:200]!r} leads out of its folder")
    elif not member.isreg():
        raise ValueError(f"{name[:200]!r} is neither a file nor a link")


def _link_text_stays_inside(name: str, linked: str) -> bool:
    """Return whether a link leads to a path below the work folder, by its words alone."""
    if not linked or linked.startswith("/"):
        return False
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), linked)).startswith(WORK)


def _link_resolves_inside(link: Path, root: Path) -> bool:
    """Return whether a link leads to a path below a folder also by the other links on its way."""
    return Path(os.path.realpath(link)).is_relative_to(os.path.realpath(root))


def _write_verified_member(member: tarfile.TarInfo, source: IO[bytes], place: Path) -> bool:
    """Write a file; remove it again and return False when its content is not the one that its name says."""
    expected = (
        compile_cache.expected_entry_hash(member.name.removeprefix(CACHE)) if member.name.startswith(CACHE) else None
    )
    digest = hashlib.sha256()
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("xb") as file:
        for chunk in base_files.read_chunks(source):
            file.write(chunk)
            if expected is not None:
                digest.update(chunk)
    place.chmod(0o755 if member.mode & 0o100 else 0o644)
    os.utime(place, (member.mtime, member.mtime))
    if expected in {None, digest.hexdigest()}:
        return True
    place.unlink()
    return False
