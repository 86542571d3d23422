"""The reader of .conda packages."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import lzma
import posixpath
import struct
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from kiln.base.errors import BrokenPackage
from kiln.base.zstd import zstd

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    Members = Generator[tuple[tarfile.TarInfo, IO[bytes] | None], None, None]


# The errors of Python's readers for damaged or malicious files; RuntimeError is zipfile's for encrypted members.
_BROKEN = (
    *(zipfile.BadZipFile, zstd.ZstdError, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(ValueError, EOFError, LookupError, ArithmeticError, NotImplementedError, RuntimeError, MemoryError),
)
CHUNK = 1 << 20
LARGEST_INFO = 1 << 28  # bytes; metadata beyond that is an attack or a mistake
LARGEST_JSON = {"paths.json": 1 << 27}  # the list of a million files
LARGEST_OTHER_JSON = 1 << 24
LARGEST_HEADER = 1 << 20  # of a tar archive's member: its name, or its extended attributes
LONGEST_PATH = 4096  # PATH_MAX of linux/limits.h
LEAST_PAYLOAD, RATIO = 1 << 33, 200  # bytes, and how many times its packed size a payload may be unpacked
MOST_MEMBERS = 2_000_000
_FORMAT, _LARGEST_METADATA = 2, 1 << 16
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_DESCRIPTOR, _LONGEST_DESCRIPTOR = 8, 24  # the flag of sizes that follow a member, and their bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoFile:
    """A file of a package's metadata."""

    data: bytes
    mode: int = 0o644


class CheckedTarMember(tarfile.TarInfo):
    """A member whose header is read only when it has a plausible size."""

    _SPECIAL = frozenset(
        (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
    )

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        """Refuse members that no package has; tarfile's documentation names this method as the one to override."""
        if self.size < 0 or (self.type in self._SPECIAL and self.size > LARGEST_HEADER):
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a file with holes, which no package has")
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]  # its stubs leave it out
        if member.ischr() or member.isblk() or member.isfifo():
            raise tarfile.ReadError(f"{member.name[:200]!r} is a device or a pipe, which no package has")
        if member.issparse() or member.size < 0:
            raise tarfile.ReadError("a file with holes, which no package has")
        if max(len(member.name), len(member.linkname)) > LONGEST_PATH:
            raise tarfile.ReadError(f"a path of more than {LONGEST_PATH:,} characters")
        return member


class _SizeLimitedStream(io.RawIOBase):
    """A stream that can be read up to a size."""

    def __init__(self, stream: zstd.ZstdFile, limit: int) -> None:
        self._stream, self._remaining, self._limit = stream, limit, limit

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read at most as many bytes as the buffer holds."""
        size: int = self._stream.readinto(buffer)
        self._remaining -= size
        if self._remaining < 0:
            raise ValueError(f"it unpacks to more than {self._limit:,} bytes")
        return size


def read_info_json(package: Path, name: str) -> Any:
    """Return one JSON file of a package's metadata, such as ``about.json``; an empty object when it has none.

    Raises:
        BrokenPackage: when the file is not a .conda package, or has that file twice or with invalid JSON.
    """
    value = None
    with open_package_members(package, only_info=True) as members:
        for member, content in members:
            if posixpath.normpath(member.name) == f"info/{name}":
                value = _parse_info_json(name, content, value)
    return {} if value is None else value[0]


def read_info_files(package: Path) -> dict[str, bytes]:
    """Return the regular files of a package's metadata by their names below ``info/``.

    Raises:
        BrokenPackage: when the file is not a .conda package.
    """
    with open_package_members(package, only_info=True) as members:
        return {member.name.removeprefix("info/"): content.read() for member, content in members if content}


def read_info_json_object(package: Path, name: str) -> dict[str, Any]:
    """Return a JSON file of a package's metadata that is an object; an empty one when it has none.

    Raises:
        BrokenPackage: when it is something else, or the file is not a .conda package.
    """
    value = read_info_json(package, name)
    if not isinstance(value, dict):
        raise BrokenPackage(f"{package} has an info/{name} that is not a JSON object")
    return value


def _parse_info_json(name: str, content: IO[bytes] | None, before: tuple[Any] | None) -> tuple[Any]:
    """Return the value of a JSON file, which a package has once, as a regular file of limited size."""
    if content is None or before is not None:
        raise ValueError(f"its info/{name} is {'not a regular file' if content is None else 'there twice'}")
    limit = LARGEST_JSON.get(name, LARGEST_OTHER_JSON)
    data = content.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"its info/{name} is larger than {limit:,} bytes")
    return (parse_strict_json(data),)


def parse_strict_json(data: bytes) -> Any:
    """Return a JSON value that all readers agree on: each key once, finite numbers, valid text."""
    try:
        value = json.loads(data, object_pairs_hook=_object_with_unique_keys, parse_constant=_refuse_non_finite_number)
        if rb"\u" in data:
            json.dumps(value, ensure_ascii=False).encode()  # fails for half a surrogate pair
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    return value


def _object_with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has a key twice")
    return value


def _refuse_non_finite_number(word: str) -> None:
    raise ValueError(f"{word} is not a number in JSON")


@contextlib.contextmanager
def open_package_members(
    package: Path, *, only_info: bool = False
) -> Iterator[Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]]:
    """Yield every member of a package, metadata first or alone, with the content of regular files; none is unpacked.

    Raises:
        BrokenPackage: when the file is not a .conda package, damaged, or unpacks to more than packages do.
    """
    with (
        _errors_as_broken_package(package),
        zipfile.ZipFile(package) as file,
        contextlib.closing(
            _archive_members(file, info_archive_name(file), LARGEST_INFO)
            if only_info
            else _info_and_payload_members(file, limit=max(LEAST_PAYLOAD, RATIO * package.stat().st_size))
        ) as members,
    ):
        yield members


def require_undamaged(package: Path) -> None:
    """Compare all parts of a package with the checksums in its archive.

    Raises:
        BrokenPackage: when one differs, or the file is not an archive.
    """
    with _errors_as_broken_package(package), zipfile.ZipFile(package) as file:
        if (damaged := file.testzip()) is not None:
            raise zipfile.BadZipFile(f"{damaged} has another checksum than the archive says")


@contextlib.contextmanager
def _errors_as_broken_package(package: Path) -> Iterator[None]:
    try:
        yield
    except (*_BROKEN, OSError) as error:
        # None is a decoder's own, EINVAL that of an invalid offset.
        if isinstance(error, OSError) and error.errno not in {None, errno.EINVAL}:
            raise
        raise BrokenPackage(
            f"{package} is not a .conda package",
            why=str(error) or type(error).__name__,
            hint="it is damaged or malicious: build it again, or download it from where it was published",
        ) from error


def _info_and_payload_members(file: zipfile.ZipFile, *, limit: int) -> Members:
    payload = [name for name in file.namelist() if name.startswith("pkg-") and name.endswith(".tar.zst")]
    yield from _archive_members(file, info_archive_name(file), LARGEST_INFO)
    for name in payload:
        yield from _archive_members(file, name, limit)


def _archive_members(file: zipfile.ZipFile, name: str, limit: int) -> Members:
    """Yield the members of one archive of a package, which may unpack to ``limit`` bytes."""
    with (
        file.open(name) as packed,
        zstd.open(packed) as stream,
        tarfile.open(
            fileobj=io.BufferedReader(_SizeLimitedStream(stream, limit), CHUNK), mode="r|", tarinfo=CheckedTarMember
        ) as archive,
    ):
        for number, member in enumerate(archive):
            if number >= MOST_MEMBERS:
                raise ValueError(f"it has more than {MOST_MEMBERS:,} files")
            archive.members.clear()  # type: ignore[attr-defined]  # it keeps all of them; the stubs leave it out
            yield member, archive.extractfile(member) if member.isreg() else None


def info_archive_name(file: zipfile.ZipFile) -> str:
    """Return the name of the one archive with a package's metadata, which readers from either end find."""
    names = file.namelist()
    info = [name for name in names if name.startswith("info-") and name.endswith(".tar.zst")]
    payload = [name for name in names if name.startswith("pkg-") and name.endswith(".tar.zst")]
    if not info:
        raise ValueError("it has no metadata")
    if len(info) > 1 or len(payload) > 1 or len(set(names)) < len(names):
        raise ValueError("it has a member twice")
    if "metadata.json" in names:
        with file.open("metadata.json") as content:
            metadata = parse_strict_json(content.read(_LARGEST_METADATA))
        if not isinstance(metadata, dict) or metadata.get("conda_pkg_format_version") != _FORMAT:
            raise ValueError(f"its format is not version {_FORMAT} of .conda")
    _require_no_data_between_members(file)
    return info[0]


def _require_no_data_between_members(file: zipfile.ZipFile) -> None:
    """Refuse data between the members of the directory: a reader from the start would find it."""
    assert file.fp is not None
    start = end = 0
    for member in sorted(file.infolist(), key=lambda item: item.header_offset):
        slack = _LONGEST_DESCRIPTOR if member.flag_bits & _DESCRIPTOR else 0
        file.fp.seek(member.header_offset)
        header = file.fp.read(_LOCAL_HEADER.size)
        if not start <= member.header_offset <= end or len(header) < _LOCAL_HEADER.size:
            raise ValueError("its members do not follow one another")
        *_, name, extra = _LOCAL_HEADER.unpack(header)
        start = member.header_offset + _LOCAL_HEADER.size + name + extra + member.compress_size
        end = start + slack
    if not start <= file.start_dir <= end:
        raise ValueError("there is data between its members and their directory")
