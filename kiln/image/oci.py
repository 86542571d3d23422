"""An image as files in the OCI layout, with reproducible layers."""

from __future__ import annotations

import gzip
import hashlib
import io
import posixpath
import re
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from kiln.base import files
from kiln.base.errors import UsageError
from kiln.base.serialization import canonical_json, iso_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_OCI = "application/vnd.oci.image"
# HOST[:PORT]/PATH:TAG as engines accept it; without a tag they would add a default.
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME = re.compile(
    rf"(?:[A-Za-z0-9][A-Za-z0-9.-]{{0,253}}(?::\d{{1,5}})?/)?{_PART}(?:/{_PART})*:\w[\w.-]{{0,127}}", re.ASCII
)
_LONGEST = 255  # characters of a name


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenImage:
    """A written image; ``digest`` is its manifest's, ``config_digest`` the image id of engines."""

    digest: str
    config_digest: str


def require_valid_image_name(tag: str) -> None:
    """Raise UsageError for an invalid name of an image."""
    if len(tag) > _LONGEST or not _NAME.fullmatch(tag):
        raise UsageError(f"{tag!r} is not a valid name of an image", hint="--tag localhost/mine:1")


def write_image_layout(
    folder: Path, layers: Sequence[PackedLayer], config: Mapping[str, Any], *, tag: str, epoch: int
) -> WrittenImage:
    """Complete a folder with packed layers in ``blobs/sha256`` to an image layout.

    ``config`` says how an engine runs the image, in the format of the OCI specification.
    """
    image = _write_blob(folder, _config_document(config, layers, epoch=epoch))
    manifest = _write_blob(
        folder,
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": {"mediaType": f"{_OCI}.config.v1+json", **image},
            "layers": [
                {"mediaType": f"{_OCI}.layer.v1.tar+gzip", "digest": layer.digest, "size": layer.size}
                for layer in layers
            ],
        },
    )
    names = {"io.containerd.image.name": tag, "org.opencontainers.image.ref.name": tag.rpartition(":")[2]}
    top = {"mediaType": f"{_OCI}.manifest.v1+json", **manifest, "annotations": names}
    _write_json(folder / "index.json", {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [top]})
    _write_json(folder / "oci-layout", {"imageLayoutVersion": "1.0.0"})
    docker = {
        "Config": _relative_blob_path(image["digest"]),
        "RepoTags": [tag],
        "Layers": [_relative_blob_path(layer.digest) for layer in layers],
    }
    _write_json(folder / "manifest.json", [docker])
    return WrittenImage(digest=manifest["digest"], config_digest=image["digest"])


def _config_document(config: Mapping[str, Any], layers: Sequence[PackedLayer], *, epoch: int) -> dict[str, Any]:
    created = iso_timestamp(epoch)
    return {
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": created, "created_by": f"kiln image: {layer.title}"} for layer in layers],
    }


def write_layout_archive(folder: Path, target: Path) -> None:
    """Write an image layout as a reproducible tar archive, completely or not at all."""
    with (
        files.full_disk_as_kiln_error(target.parent),
        files.atomic_replacement(target) as part,
        tarfile.open(part, "w") as file,
    ):
        for path in files.files_below(folder):
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            member.size, member.mode = path.stat().st_size, 0o644
            with path.open("rb") as content:
                file.addfile(member, content)


def blob_path(folder: Path, digest: str) -> Path:
    """Return the path of a blob in a layout."""
    return folder / _relative_blob_path(digest)


def _relative_blob_path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _write_blob(folder: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    data = canonical_json(content)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    blob_path(folder, digest).write_bytes(data)
    return {"digest": digest, "size": len(data)}


def _write_json(path: Path, content: Any) -> None:
    path.write_bytes(canonical_json(content))


FOLDER, PROGRAM, FILE = 0o755, 0o755, 0o644
_LEVEL = 6  # of gzip, which every engine reads


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerEntry:
    """A file, link or folder of an image; ``owner`` is a user id.

    The group is always root's (0), to which platforms that assign user ids add their users.

    ``path`` is absolute. The content is ``source`` or ``data``; ``link`` is the target of a symbolic link. A folder has
    none of them.
    """

    path: str
    mode: int
    source: Path | None = None
    data: bytes | None = None
    link: str = ""
    owner: int = 0

    @property
    def size(self) -> int:
        """The size of the content in bytes."""
        if self.source is not None:
            return self.source.stat().st_size
        return len(self.data or b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Entries that are packed together, with a title."""

    title: str
    entries: tuple[LayerEntry, ...]

    @property
    def size(self) -> int:
        """The unpacked size of all files in bytes."""
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayer:
    """A layer as a compressed archive; ``diff_id`` is the digest of the uncompressed archive."""

    title: str
    path: Path
    digest: str
    diff_id: str
    size: int


class _HashingStream(io.RawIOBase):
    """A stream that hashes the data written to it."""

    def __init__(self, target: BinaryIO | gzip.GzipFile) -> None:
        self.target = target
        self.hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # tarfile writes bytes alone
        self.hash.update(data)
        return self.target.write(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self.hash.hexdigest()}"


def pack_layer(layer: Layer, path: Path, *, epoch: int) -> PackedLayer:
    """Write a layer to ``path``, with ``epoch`` (seconds) as the time of all files, and with parent folders."""
    with path.open("wb") as file:
        outer = _HashingStream(file)
        with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, mtime=0, fileobj=outer) as zipped:
            inner = _HashingStream(zipped)
            with tarfile.open(fileobj=inner, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                for entry in with_parent_folders(layer.entries):
                    _add_to_archive(archive, entry, epoch)
    return PackedLayer(
        title=layer.title, path=path, digest=outer.digest, diff_id=inner.digest, size=path.stat().st_size
    )


def with_parent_folders(entries: Iterable[LayerEntry]) -> Iterator[LayerEntry]:
    """Yield entries sorted by path, with their parent folders; the last entry of a path counts."""
    by_path = {entry.path: entry for entry in entries}
    folders = {str(parent) for path in by_path for parent in PurePosixPath(path).parents} - {"/"}
    for path in sorted(by_path.keys() | folders):
        yield by_path.get(path) or LayerEntry(path=path, mode=FOLDER)


def dead_links(entries: Iterable[LayerEntry], *, below: str) -> frozenset[str]:
    """Return the paths of links whose targets are below a folder, but not among the entries."""
    by_path = {entry.path: entry for entry in with_parent_folders(entries)}
    links = {path: entry.link for path, entry in by_path.items() if entry.link}
    ends = {path: _resolved_link_path(path, links) for path in links}
    return frozenset(path for path, end in ends.items() if end.startswith(f"{below}/") and end not in by_path)


def _resolved_link_path(path: str, links: Mapping[str, str], *, most: int = 40) -> str:
    """Return a path with links resolved, at most as many as Linux follows."""
    resolved = ""
    for part in PurePosixPath(path).parts[1:]:
        resolved = f"{resolved}/{part}"
        if resolved in links and most:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(resolved), links[resolved]))
            resolved = _resolved_link_path(target, links, most=most - 1)
    return resolved


def entries_of_tree(root: Path, paths: Iterable[str], *, below: str) -> Iterator[LayerEntry]:
    """Yield the files and links at ``paths`` in the folder ``root`` as entries below another folder.

    Independent of the umask, all users can read a file, and run it if its owner can.
    """
    for path in paths:
        source = root / path
        status = source.lstat()
        if stat.S_ISLNK(status.st_mode):
            yield LayerEntry(path=f"{below}/{path}", mode=0o777, link=str(source.readlink()))
        else:
            mode = PROGRAM if status.st_mode & stat.S_IXUSR else FILE
            yield LayerEntry(path=f"{below}/{path}", mode=mode, source=source)


def _add_to_archive(archive: tarfile.TarFile, entry: LayerEntry, epoch: int) -> None:
    member = tarfile.TarInfo(entry.path.lstrip("/"))
    member.mode, member.mtime, member.uid = entry.mode, epoch, entry.owner
    if entry.link:
        member.type, member.linkname = tarfile.SYMTYPE, entry.link
        archive.addfile(member)
    elif entry.source is not None:
        member.size = entry.size
        with entry.source.open("rb") as content:
            archive.addfile(member, content)
    elif entry.data is not None:
        member.size = entry.size
        archive.addfile(member, io.BytesIO(entry.data))
    else:
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
