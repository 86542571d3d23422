"""Paths of the build machine in a package: the text that was found, and how to keep it out."""

from __future__ import annotations

import re
from enum import Enum

LONGEST = 200  # bytes of a path that are shown
SECRET = "keep it out of the installed files, and revoke it where it was valid"  # noqa: S105 - a hint
_END = re.compile(rb"[\x00-\x20\x7f\"'<>|;,)\]}]")


class LeakingFileKind(str, Enum):
    """The kinds of files that have paths for reasons of their own."""

    DIRECT_URL = "direct_url.json"
    BINARY = "binary"
    BYTECODE = "bytecode"
    ARCHIVE = "static library"
    TEXT = "text"


HINTS = {
    LeakingFileKind.DIRECT_URL: "pip's record of a local source; built again with this kiln, the package is without it",
    LeakingFileKind.BINARY: (
        "compile with -ffile-prefix-map=$SRC_DIR=/usr/local/src/conda/$PKG_NAME-$PKG_VERSION in CFLAGS and CXXFLAGS, "
        "as conda-forge's compilers do (--remap-path-prefix for Rust, -trimpath for Go), or strip debug information"
    ),
    LeakingFileKind.BYTECODE: "compile the module where it is installed: python -m compileall -d site-packages",
    LeakingFileKind.TEXT: "remove the path from the file in the build script; only $PREFIX is replaced by an install",
}
HINTS[LeakingFileKind.ARCHIVE] = HINTS[LeakingFileKind.BINARY]


def leaking_file_kind(name: str, start: bytes) -> LeakingFileKind:
    """Return the kind of a file, by its name and its first bytes."""
    if name.endswith(".dist-info/direct_url.json"):
        return LeakingFileKind.DIRECT_URL
    if name.endswith(".pyc"):
        return LeakingFileKind.BYTECODE
    if start.startswith(b"\x7fELF"):
        return LeakingFileKind.BINARY
    return LeakingFileKind.ARCHIVE if start.startswith(b"!<arch>") else LeakingFileKind.TEXT


def path_at_offset(text: bytes, offset: int) -> str:
    """Return the path that begins at an offset."""
    end = _END.search(text, offset, offset + LONGEST)
    path = text[offset : end.start() if end else offset + LONGEST].decode(errors="replace")
    return path if end else f"{path}..."
