"""Which sources are archives, by the names of their files, as conda-build decides."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import urlsplit

# conda-build's decompressible_exts (conda_build/utils.py): the ending of a file's name decides whether it is unpacked.
ARCHIVES = (
    *(".7z", ".tar", ".tar.bz2", ".tar.gz", ".tar.lzma", ".tar.xz", ".tar.z", ".tar.zst"),
    *(".tgz", ".whl", ".zip", ".rpm", ".deb"),
)
BY_ENGINE = (".7z", ".tar", ".tar.bz2", ".tar.gz", ".tar.xz", ".tar.zst", ".tgz", ".zip")  # those of rattler-build


def is_archive(name: str) -> bool:
    """Return whether conda-build unpacks a file of this name."""
    return name.lower().endswith(ARCHIVES)


def is_unpacked_by_engine(name: str) -> bool:
    """Return whether rattler-build unpacks a file of this name."""
    return name.lower().endswith(BY_ENGINE)


def is_wheel(name: str) -> bool:
    """Return whether a file is a wheel, which conda-build copies and unpacks."""
    return name.lower().endswith(".whl")


def file_of(url: str) -> str:
    """Return the name of the file at an address."""
    return PurePosixPath(urlsplit(url).path).name
