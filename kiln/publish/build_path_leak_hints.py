"""Paths of the build machine in a package: the text that was found, and how to keep it out."""

from __future__ import annotations

import re
from enum import Enum

LONGEST = 200  # bytes of a path that are shown
SECRET = "keep it out of the installed files, and revoke it where it was valid"  # noqa: S105 - a hint
_END = re.compile(rb"[\x00-\x20\x7f\"'<>|;,)\]}]")


class FileKind(str, Enum):
    """The kinds of files that have paths for reasons of their own."""

    DIRECT_URL = "direct_url.json"
    BINARY = "binary"
    BYTECODE = "bytecode"
    ARCHIVE = "static library"
    TEXT = "text"


HINTS = {
    FileKind.DIRECT_URL: "pip's record of a local source; built again with this kiln, the package is without it",
    FileKind.BINARY: (
        "compile with -ffile-prefix-map=$SRC_DIR=/usr/local/src/conda/$PKG_NAME-$PKG_VERSION in CFLAGS and CXXFLAGS, "
        "as conda-forge's compilers do (--remap-path-prefix for Rust, -trimpath for Go), or strip debug information"
    ),
    FileKind.BYTECODE: "compile the module where it is installed: python -m compileall -d site-packages",
    FileKind.TEXT: "remove the path from the file in the build script; only $PREFIX is replaced by an install",
}
HINTS[FileKind.ARCHIVE] = HINTS[FileKind.BINARY]


def file_kind(name: str, start: bytes) -> FileKind:
    """Return the kind of a file, by its name and its first bytes."""
    if name.endswith(".dist-info/direct_url.json"):
        return FileKind.DIRECT_URL
    if name.endswith(".pyc"):
        return FileKind.BYTECODE
    if start.startswith(b"\x7fELF"):
        return FileKind.BINARY
    return FileKind.ARCHIVE if start.startswith(b"!<arch>") else FileKind.TEXT


def path_at(text: bytes, offset: int) -> str:
    """Return the path that begins at an offset."""
    end = _END.search(text, offset, offset + LONGEST)
    path = text[offset : end.start() if end else offset + LONGEST].decode(errors="replace")
    return path if end else f"{path}..."
