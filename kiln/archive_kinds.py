"""Which sources are archives, by the names of their files, as conda-build decides; and which kind, by their content.

libarchive, with which conda-build unpacks, goes by the content alone: a plain tar file may be called ``a.tar.gz``.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

# conda-build's decompressible_exts (conda_build/utils.py): the ending of a file's name decides whether it is unpacked.
ARCHIVES = (
    *(".7z", ".tar", ".tar.bz2", ".tar.gz", ".tar.lzma", ".tar.xz", ".tar.z", ".tar.zst"),
    *(".tgz", ".whl", ".zip", ".rpm", ".deb"),
)
BY_ENGINE = (".tar", ".tar.bz2", ".tar.gz", ".tar.xz", ".tar.zst", ".tgz", ".zip")  # but 7z, which it lets lead out


# The kinds that a name promises, and the beginnings of files of each kind.
KINDS = {
    "gzip": (".gz", ".tgz"),
    "zip": (".zip", ".whl", ".conda"),
    "bzip2": (".bz2", ".tbz2", ".tbz"),
    "xz": (".xz", ".txz"),
    "zstd": (".zst",),
    "7z": (".7z",),
    "tar": (".tar",),
}
_MAGIC = {
    "gzip": b"\x1f\x8b",
    "zip": b"PK",
    "bzip2": b"BZh",
    "xz": b"\xfd7zXZ\x00",
    "zstd": b"\x28\xb5\x2f\xfd",
    "7z": b"7z\xbc\xaf\x27\x1c",
}
_TAR_MAGIC, _TAR_OFFSET = b"ustar", 257  # of the first header, in POSIX's and GNU's formats
HEADER = 512  # bytes of a file from which its kind is known


def kind_of_name(name: str) -> str | None:
    """Return the kind of file that a name promises; None for others than those of `KINDS`."""
    return next((kind for kind, ends in KINDS.items() if name.lower().endswith(ends)), None)


def kind_of_content(beginning: bytes) -> str | None:
    """Return the kind of a file that begins with these bytes; None for others."""
    if beginning[_TAR_OFFSET:].startswith(_TAR_MAGIC):
        return "tar"
    return next((kind for kind, magic in _MAGIC.items() if beginning.startswith(magic)), None)


def is_misnamed(path: Path, name: str) -> bool:
    """Return whether a file is an archive of another kind than its name says."""
    with path.open("rb") as file:
        kind = kind_of_content(file.read(HEADER))
    return kind is not None and kind != kind_of_name(name)


def is_archive(name: str) -> bool:
    """Return whether conda-build unpacks a file of this name."""
    return name.lower().endswith(ARCHIVES)


def is_unpacked_by_rattler_build(name: str) -> bool:
    """Return whether rattler-build unpacks a file of this name."""
    return name.lower().endswith(BY_ENGINE)


def is_wheel(name: str) -> bool:
    """Return whether a file is a wheel, which conda-build copies and unpacks."""
    return name.lower().endswith(".whl")


def file_name_of_url(url: str) -> str:
    """Return the name of the file at an address."""
    return PurePosixPath(urlsplit(url).path).name
