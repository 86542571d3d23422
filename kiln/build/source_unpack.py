"""Unpack a source's archive, as conda-build does: without any path out of the folder, and through no link.

tar and zip files are read here; for 7z, RPM, Debian packages and compress(1), bsdtar runs, whose library conda-build
has, too. Times and modes are the archive's, since a Makefile may depend on them.
"""

from __future__ import annotations

import calendar
import errno
import lzma
import os
import posixpath
import shutil
import stat
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from kiln import files, process_runner
from kiln.archive_kinds import HEADER, is_archive, is_wheel, kind_of_content, kind_of_name
from kiln.errors import BuildFailed
from kiln.zstd import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_FAULTS = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, zstd.ZstdError, EOFError),
    # of members: passwords, odd methods, odd names, odd times
    *(KeyError, RuntimeError, NotImplementedError, ValueError, OverflowError),
)
_ALL = 0o777
_LONGEST_LINK = 4096  # bytes, of which Linux makes no link any more
_DOS_EPOCH = 315532800  # 1980-01-01, for members of zip files without a date


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArchiveMember:
    """A member of an archive: a folder, a link to ``link``, another name of the file ``same``, or a file."""

    name: str
    mode: int
    time: float
    link: str | None = None
    same: str | None = None
    content: Callable[[], IO[bytes] | None] | None = None


def unpack_source(archive: Path, name: str, folder: Path, *, hoist: bool, env: Mapping[str, str]) -> Path:
    """Unpack a file that is called ``name`` into a new folder, and return the folder with its content.

    With ``hoist``, that is the single folder at the top of the archive, if it has one. A file that is not an archive is
    copied, and a wheel is both.

    Raises:
        BuildFailed: the archive is damaged, or has a path that leads out of the folder.
        MissingTool: bsdtar is needed, and missing.
        DiskFull: when the disk is full.
    """
    folder.mkdir(parents=True)
    with files.full_disk_as_kiln_error(folder):
        if is_archive(name):
            _unpack_archive(archive, name, folder, env)
        if not is_archive(name) or is_wheel(name):
            shutil.copy2(archive, folder / name)
    entries = list(folder.iterdir())
    has_top = hoist and len(entries) == 1 and entries[0].is_dir() and not entries[0].is_symlink()
    return entries[0] if has_top else folder


def _unpack_archive(archive: Path, name: str, folder: Path, env: Mapping[str, str]) -> None:
    members = _archive_member_reader(archive, name)
    if members is None:
        _run_bsdtar(archive, name, folder, env)
        return
    try:
        _write_members(members(archive), folder, name)
    except _FAULTS as error:
        raise BuildFailed(f"{name} cannot be unpacked", why=f"{type(error).__name__}: {error}") from error
    except OSError as error:  # a file in the place of a folder, a name that is too long
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise BuildFailed(f"{name} cannot be unpacked", why=str(error)) from error


def _write_members(members: Iterable[_ArchiveMember], folder: Path, archive: str) -> None:
    folders: list[tuple[Path, _ArchiveMember]] = []
    for member in members:
        place = _safe_member_path(folder, member.name, archive)
        if place == folder:
            continue
        _write_member(member, place, folder, archive)
        if place.is_dir() and not place.is_symlink():
            folders.append((place, member))
    for place, member in reversed(folders):  # files in them change their times
        place.chmod((member.mode & _ALL) | stat.S_IRWXU)
        os.utime(place, (member.time, member.time))


def _archive_member_reader(archive: Path, name: str) -> Callable[[Path], Iterator[_ArchiveMember]] | None:
    """Return the reader for an archive's content, as in conda-build; without a mark, for its name."""
    with archive.open("rb") as file:
        kind = kind_of_content(file.read(HEADER)) or kind_of_name(name)
    if kind is None and name.lower().endswith(".tar.lzma"):  # a kind without a mark
        return _tar_file_members
    return None if kind is None else _READERS.get(kind)


def _tar_file_members(archive: Path) -> Iterator[_ArchiveMember]:
    with tarfile.open(archive, "r:*") as tar:
        yield from _members_of_tar(tar)


def _zstd_tar_members(archive: Path) -> Iterator[_ArchiveMember]:
    with zstd.ZstdFile(archive) as plain, tarfile.open(fileobj=plain, mode="r|") as tar:
        yield from _members_of_tar(tar)


def _members_of_tar(tar: tarfile.TarFile) -> Iterator[_ArchiveMember]:
    for member in tar:
        if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
            raise tarfile.TarError(f"{member.name[:200]!r} is a device or a pipe")
        yield _ArchiveMember(
            name=member.name,
            mode=member.mode,
            time=member.mtime,
            link=member.linkname if member.issym() else None,
            same=member.linkname if member.islnk() else None,
            content=(lambda member=member: tar.extractfile(member)) if member.isfile() else None,  # type: ignore[misc]
        )


def _zip_members(archive: Path) -> Iterator[_ArchiveMember]:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            mode = member.external_attr >> 16
            is_link = stat.S_ISLNK(mode)
            yield _ArchiveMember(
                name=member.filename,
                mode=stat.S_IMODE(mode) or (0o755 if member.is_dir() else 0o644),
                time=_zip_member_time(member),
                link=_zip_link_target(file, member) if is_link else None,
                content=None if is_link or member.is_dir() else (lambda member=member: file.open(member)),  # type: ignore[misc]
            )


_READERS = {
    "tar": _tar_file_members,
    "gzip": _tar_file_members,
    "bzip2": _tar_file_members,
    "xz": _tar_file_members,
    "zstd": _zstd_tar_members,
    "zip": _zip_members,
}


def _zip_member_time(member: zipfile.ZipInfo) -> int:
    try:
        return calendar.timegm((*member.date_time, 0, 0, 0))
    except ValueError:  # month 0: the date was not set
        return _DOS_EPOCH


def _zip_link_target(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    with file.open(member) as content:
        return os.fsdecode(content.read(_LONGEST_LINK))


def _safe_member_path(folder: Path, name: str, archive: str) -> Path:
    """Return the path of a member: inside of the folder, and below no link."""
    parts = [part for part in name.split("/") if part not in {"", "."}]
    place = folder
    for part in parts:
        if part == ".." or name.startswith("/") or place.is_symlink():
            why = "it is below a link" if place.is_symlink() else "it leads out of the archive's folder"
            raise BuildFailed(f"{archive} is not unpacked: it has {name[:200]!r}", why=why)
        place /= part
    return place


def _write_member(member: _ArchiveMember, place: Path, folder: Path, archive: str) -> None:
    """Make a file, folder or link; a later member of the same name replaces an earlier one."""
    if member.link is None and member.same is None and member.content is None:
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            place.unlink()
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink() or place.is_file():
        place.unlink()
    if member.link is not None:
        place.symlink_to(member.link)
    elif member.same is not None:
        _make_hard_link(_safe_member_path(folder, member.same, archive), place)
    elif member.content is not None:
        _write_file_member(member, place)


def _make_hard_link(target: Path, place: Path) -> None:
    if target.is_symlink():
        place.symlink_to(target.readlink())
    elif target.is_file():
        os.link(target, place)
    else:
        raise KeyError(f"{posixpath.basename(target)[:200]!r} is a link to a file that is not there")


def _write_file_member(member: _ArchiveMember, place: Path) -> None:
    content = member.content() if member.content is not None else None
    if content is None:
        raise KeyError(f"{member.name[:200]!r} has no content")
    with content, place.open("xb") as file:
        for chunk in files.read_chunks(content, 1 << 18):
            if chunk.count(0) == len(chunk):  # a hole of a sparse file takes no space on the disk
                file.seek(len(chunk), os.SEEK_CUR)
            else:
                file.write(chunk)
        file.truncate()
    place.chmod((member.mode & _ALL) | stat.S_IRUSR)
    os.utime(place, (member.time, member.time))


def _run_bsdtar(archive: Path, name: str, folder: Path, env: Mapping[str, str]) -> None:
    """Have bsdtar unpack an archive; without -P it writes neither out of the folder nor through links."""
    argv = ("bsdtar", "-x", "-p", "--no-same-owner", "-f", str(archive), "-C", str(folder))
    result = process_runner.run(argv, env=env)
    if not result.ok:
        raise BuildFailed(f"{name} cannot be unpacked", why=result.tail)
    for path in (Path(place, name) for place, _, names in files.walk(folder) for name in names):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            place = str(path.relative_to(folder))
            raise BuildFailed(f"{name} is not unpacked: it has {place[:200]!r}", why="it is a device or a pipe")
