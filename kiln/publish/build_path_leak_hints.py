"""Paths of the build machine in a package: the text that was found, and how to keep it out."""

from __future__ import annotations

import re

LONGEST = 200  # bytes of a path that are shown
SECRET = "keep it out of the installed files, and revoke it where it was valid"  # noqa: S105 - a hint
_END = re.compile(rb"[\x00-\x20\x7f\"'<>|;,)\]}]")
_DIRECT_URL = "pip's record of a local source; built again with this kiln, the package is without it"
_COMPILED = (
    "compile with -ffile-prefix-map=$SRC_DIR=/usr/local/src/conda/$PKG_NAME-$PKG_VERSION in CFLAGS and CXXFLAGS, "
    "as conda-forge's compilers do (--remap-path-prefix for Rust, -trimpath for Go), or strip debug information"
)
_BYTECODE = "compile the module where it is installed: python -m compileall -d site-packages"
_TEXT = "remove the path from the file in the build script; only $PREFIX is replaced by an install"


def build_path_leak_hint(name: str, start: bytes) -> str:
    """Return how to keep build paths out of a file, which depends on its kind: its name and its first bytes."""
    if name.endswith(".dist-info/direct_url.json"):
        return _DIRECT_URL
    if name.endswith(".pyc"):
        return _BYTECODE
    return _COMPILED if start.startswith((b"\x7fELF", b"!<arch>")) else _TEXT


def path_at_offset(text: bytes, offset: int) -> str:
    """Return the path that begins at an offset."""
    end = _END.search(text, offset, offset + LONGEST)
    path = text[offset : end.start() if end else offset + LONGEST].decode(errors="replace")
    return path if end else f"{path}..."
