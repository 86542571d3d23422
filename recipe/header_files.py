"""The headers of a wheel: whose they are, where they go, and includes that are found there.

TensorFlow's own folders go straight into a prefix's include/, those of the libraries that it contains into a folder of
their own, since absl/, google/ and Eigen/ in include/ would overwrite those of other packages. Includes of the latter
name that folder, so that a compiler finds all of them with ``-I$PREFIX/include`` alone.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from wheel_files import content, files

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterable

INCLUDE = "tensorflow/include/"
# They are folders and not links: other packages install files there, too (tsl_robin_map has include/tsl), and a link
# instead of a folder would hide these files, or put them into TensorFlow's.
OWN = ("tensorflow/", "tsl/", "xla/")
APART = "libtensorflow_cc"
C_INTERFACE = "tensorflow/c/"
# Whole source trees, which are included by other paths than theirs; nothing of them is found by -I of their top.
TREES = "external/"
# Python's own headers, which every `python` package has. Of the libraries' files they alone differ between the wheels
# of two Pythons, so without them one libtensorflow_cc serves every Python.
PYTHON = re.compile(r"external/(local_config_python|python_3_\d+_[^/]*)/")
DIRECTIVE = re.compile(rb'^([ \t]*#[ \t]*include[ \t]*["<])([^">\n]+)(?=[">])', re.MULTILINE)


def of_wheel(wheel: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the wheel's headers by their paths below its include folder, without those of Python."""
    members = {m.filename.removeprefix(INCLUDE): m for m in files(wheel) if m.filename.startswith(INCLUDE)}
    return {name: member for name, member in members.items() if not PYTHON.match(name)}


def place(name: str) -> str:
    """Return the path of a header in a prefix's include folder."""
    return name if name.startswith(OWN) else f"{APART}/{name}"


def is_apart(name: str) -> bool:
    """Return whether a header is included by a path that another package's header could have."""
    return not name.startswith((*OWN, TREES))


def with_places(text: bytes, name: str, apart: Iterable[str]) -> bytes:
    """Return the text of a header with the headers in `apart` included by their places in a prefix."""
    folder = posixpath.dirname(name)

    def at_its_place(match: re.Match[bytes]) -> bytes:
        path = match[2].decode("utf-8", "surrogateescape")
        is_beside = match[1].endswith(b'"') and posixpath.join(folder, path) in apart
        return match[0] if is_beside or path not in apart else match[1] + APART.encode() + b"/" + match[2]

    return text if name.startswith(TREES) else DIRECTIVE.sub(at_its_place, text)


def of_c_interface(wheel: zipfile.ZipFile, names: Iterable[str]) -> frozenset[str]:
    """Return the headers of the C interface with those that they include; all are C."""
    names = frozenset(names)
    result: set[str] = set()
    for name in sorted(names):
        if name.startswith(C_INTERFACE):
            needed = closure(wheel, name, names)
            result |= needed if all(item.startswith(OWN) for item in needed) else set()
    return frozenset(result)


def closure(wheel: zipfile.ZipFile, name: str, names: frozenset[str]) -> set[str]:
    """Return a header and all that it includes, up to the first that is not TensorFlow's own."""
    result: set[str] = set()
    waiting = [name]
    while waiting:
        header = waiting.pop()
        if header not in result:
            result.add(header)
            if not header.startswith(OWN):
                break
            waiting += included(content(wheel, INCLUDE + header), header, names)
    return result


def included(text: bytes, name: str, names: frozenset[str]) -> list[str]:
    """Return those of the headers `names` that a header includes."""
    paths = [path.decode("utf-8", "surrogateescape") for _, path in DIRECTIVE.findall(text)]
    beside = [posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) for path in paths]
    return [path for path in (*paths, *beside) if path in names]
