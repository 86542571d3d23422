"""The writer of ``.conda`` packages, the same bytes for the same content, also with changed metadata."""

from __future__ import annotations

import hashlib
import io
import json
import os
import posixpath
import shutil
import tarfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from kiln.base import files
from kiln.base.zstd import FAST, compressing_file, zstd
from kiln.conda.package_reader import CHUNK, LARGEST_INFO, InfoFile, info_archive_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from _typeshed import SupportsRead


EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date that a zip file can have


def rewrite_info(
    package: Path,
    target: Path,
    edit: Callable[[str, bytes], bytes | None],
    *,
    added: Mapping[str, InfoFile] | None = None,
    mtime: int | None = None,
    level: int = FAST,
) -> None:
    """Write ``package`` to ``target`` with each file of its metadata passed through ``edit`` (name, content).

    A file for which ``edit`` returns None is left out; ``added`` are further files by their names below ``info/``.

    The same edit of the same package gives the same bytes. With ``mtime``, in seconds, every file in the package has
    that time, so the same content gives the same bytes, too; without it, the payload is not packed again. ``level`` is
    zstd's for what is packed.
    """
    with files.atomic_replacement(target) as part, zipfile.ZipFile(package) as old, zipfile.ZipFile(part, "w") as new:
        info = info_archive_name(old)
        for name in old.namelist():
            member = zipfile.ZipInfo(name, EPOCH)
            if name == info:
                new.writestr(member, zstd.compress(_edit_info_archive(old.read(name), edit, added or {}, mtime), level))
                continue
            with old.open(name) as source, new.open(member, "w", force_zip64=True) as sink:
                if mtime is not None and name.endswith(".tar.zst"):
                    _copy_archive_with_mtime(source, sink, mtime, level)
                else:
                    shutil.copyfileobj(source, sink, CHUNK)


def _copy_archive_with_mtime(source: IO[bytes], sink: IO[bytes], mtime: int, level: int) -> None:
    with (
        zstd.open(source) as plain,
        compressing_file(sink, level=level) as packed,
        tarfile.open(fileobj=plain, mode="r|") as old,
        tarfile.open(fileobj=packed, mode="w|") as new,
    ):
        for member in old:
            member.mtime, member.pax_headers = mtime, {}
            new.addfile(member, old.extractfile(member) if member.isreg() else None)


def _edit_info_archive(
    compressed: bytes, edit: Callable[[str, bytes], bytes | None], added: Mapping[str, InfoFile], mtime: int | None
) -> bytes:
    with zstd.open(io.BytesIO(compressed)) as stream:
        plain, changed = io.BytesIO(stream.read(LARGEST_INFO)), io.BytesIO()
    with tarfile.open(fileobj=plain) as old, tarfile.open(fileobj=changed, mode="w") as new:
        for member in old:
            content = old.extractfile(member) if member.isreg() else None
            if mtime is not None:
                member.mtime, member.pax_headers = mtime, {}
            if content is None:
                new.addfile(member)
                continue
            data = edit(member.name.removeprefix("info/"), content.read())
            if data is None:
                continue
            member.size = len(data)
            new.addfile(member, io.BytesIO(data))
        for name, file in sorted(added.items()):
            member = tarfile.TarInfo(f"info/{name}")
            member.size, member.mode, member.mtime = len(file.data), file.mode, mtime or 0
            new.addfile(member, io.BytesIO(file.data))
    return changed.getvalue()


SUBDIR = "linux-64"
# By the subdirs of packages that are made here.
ARCHITECTURES = {SUBDIR: "x86_64", "linux-aarch64": "aarch64", "osx-arm64": "arm64"}
PLACEHOLDER = "/opt/kiln_rehearsal_prefix_placeholder"
_CHUNK = 1 << 20
_OF_NOTHING = hashlib.sha256().hexdigest()
_EPOCH = 315_532_800  # 1980, the first moment that a zip can hold


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageMetadata:
    """The metadata of a package; ``run_exports`` is by kind, as ``{"weak": (...)}``."""

    name: str
    version: str
    build: str
    build_number: int = 0
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    license: str = ""
    about: Mapping[str, object] = field(default_factory=dict)
    run_exports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    made_from: Mapping[str, object] = field(default_factory=dict)
    subdir: str = SUBDIR

    @property
    def stem(self) -> str:
        """The file's name without its ending."""
        return f"{self.name}-{self.version}-{self.build}"


class PackageWriter:
    """A package being written: files go into the compressed archive at once, ``info/`` is written last."""

    def __init__(self, content: tarfile.TarFile) -> None:
        self._content = content
        self._paths: dict[str, dict[str, object]] = {}
        self._targets: dict[str, str] = {}
        self._info: dict[str, bytes] = {}
        self.written: list[tuple[str, str, int]] = []  # paths, hashes and sizes

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def add_stream(self, path: str, source: SupportsRead[bytes], size: int, *, executable: bool = False) -> None:
        """Add a file of exactly ``size`` bytes, read from ``source`` once."""
        reader = _HashingReader(source)
        self._content.addfile(_tar_member(path, size, executable=executable), reader)
        self._record_path(path, reader.sha256, size)

    def add_bytes(self, path: str, data: bytes, *, executable: bool = False) -> None:
        """Add a file; the installer replaces PLACEHOLDER in it by the prefix."""
        self._content.addfile(_tar_member(path, len(data), executable=executable), io.BytesIO(data))
        self._record_path(path, hashlib.sha256(data).hexdigest(), len(data), has_prefix=PLACEHOLDER.encode() in data)

    def add_link(self, path: str, target: str) -> None:
        """Add a symbolic link with a target relative to it."""
        member = _tar_member(path, 0, executable=True)
        member.type, member.linkname = tarfile.SYMTYPE, target
        self._content.addfile(member)
        self._paths[path] = {"_path": path, "path_type": "softlink", "size_in_bytes": len(os.fsencode(target))}
        self._targets[path] = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))

    def add_info(self, path: str, data: bytes) -> None:
        """Add a file below ``info/``, such as a license."""
        self._info[f"info/{path}"] = data

    def finished_info_files(self, facts: PackageMetadata) -> dict[str, bytes]:
        """Return all files below ``info/``."""
        paths = [row | self._link_target_hash(path) for path, row in sorted(self._paths.items())]
        about = {**facts.about, "license": facts.license, "extra": {"rehearsal": True, **facts.made_from}}
        self._info["info/index.json"] = _json_bytes(_index_json(facts))
        self._info["info/about.json"] = _json_bytes(about)
        self._info["info/paths.json"] = _json_bytes({"paths": paths, "paths_version": 1})
        self._info["info/files"] = "".join(f"{path}\n" for path in sorted(self._paths)).encode()
        if facts.run_exports:
            self._info["info/run_exports.json"] = _json_bytes({kind: list(v) for kind, v in facts.run_exports.items()})
        return dict(sorted(self._info.items()))

    def _link_target_hash(self, path: str) -> dict[str, object]:
        """Return the hash in a link's row, which clients require: of the file that it leads to in this package.

        A link to a folder, or out of the package, has the hash of nothing, as conda-build writes it.
        """
        if path not in self._targets:
            return {}
        paths: set[str] = set()
        while path in self._targets and path not in paths:
            paths.add(path)
            path = self._targets[path]
        return {"sha256": self._paths.get(path, {}).get("sha256", _OF_NOTHING)}

    def _record_path(self, path: str, sha256: str, size: int, *, has_prefix: bool = False) -> None:
        row: dict[str, object] = {"_path": path, "path_type": "hardlink", "sha256": sha256, "size_in_bytes": size}
        if has_prefix:
            row |= {"prefix_placeholder": PLACEHOLDER, "file_mode": "text"}
        self._paths[path] = row
        self.written.append((path, sha256, size))


@contextmanager
def write_package(folder: Path, facts: PackageMetadata) -> Iterator[PackageWriter]:
    """Write ``folder/<name>-<version>-<build>.conda``; it appears when the block ends without an error.

    Raises DiskFull.
    """
    target = folder / f"{facts.stem}.conda"
    with (
        files.full_disk_as_kiln_error(folder),
        files.atomic_replacement(target) as part,
        zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as outer,
    ):
        outer.writestr(zipfile.ZipInfo("metadata.json"), b'{"conda_pkg_format_version": 2}')
        with _tar_archive_in_zip(outer, f"pkg-{facts.stem}.tar.zst") as content:
            archive = PackageWriter(content)
            yield archive
        with _tar_archive_in_zip(outer, f"info-{facts.stem}.tar.zst") as info:
            for path, data in archive.finished_info_files(facts).items():
                info.addfile(_tar_member(path, len(data), executable=False), io.BytesIO(data))


def write_metadata_only_package(folder: Path, facts: PackageMetadata) -> Path:
    """Write a package without files into ``folder``, unless it exists, and return its path."""
    path = folder / f"{facts.stem}.conda"
    if not path.is_file():
        with write_package(folder, facts):
            pass  # the package consists of its metadata
    return path


@contextmanager
def _tar_archive_in_zip(outer: zipfile.ZipFile, name: str) -> Iterator[tarfile.TarFile]:
    with (
        outer.open(zipfile.ZipInfo(name), "w", force_zip64=True) as file,
        compressing_file(file, level=FAST) as compressed,
        tarfile.open(fileobj=compressed, mode="w|", format=tarfile.GNU_FORMAT, bufsize=_CHUNK) as tar,
    ):
        tar.copybufsize = _CHUNK  # type: ignore[attr-defined]  # bytes of a file that are copied at once
        yield tar


class _HashingReader(io.RawIOBase):
    """A stream that computes the hash of what is read."""

    def __init__(self, source: SupportsRead[bytes]) -> None:
        super().__init__()
        self._source = source
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def read(self, size: int = -1) -> bytes:
        chunk = self._source.read(size)
        self._digest.update(chunk)
        return chunk


def _tar_member(path: str, size: int, *, executable: bool) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.size, member.mtime, member.mode = size, _EPOCH, 0o755 if executable else 0o644
    return member


def _index_json(facts: PackageMetadata) -> dict[str, object]:
    return {
        "name": facts.name,
        "version": facts.version,
        "build": facts.build,
        "build_number": facts.build_number,
        "depends": list(facts.depends),
        "constrains": list(facts.constrains),
        "license": facts.license,
        "arch": ARCHITECTURES[facts.subdir],
        "platform": facts.subdir.partition("-")[0],
        "subdir": facts.subdir,
    }


def _json_bytes(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
