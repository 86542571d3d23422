"""Refuse the special files of a prefix: FIFOs, sockets and devices, which no package can contain.

rattler-build opens each file of the prefix to hash it, and waits for ever for the other end of a FIFO (0.73).
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REFUSED = "the script left in its prefix what no package can contain: "  # begins the error, by which its kind is known
SHOWN = 5  # files in a message
LIST = "special-files"  # in a step's folder: the kind and the path of each, ended by null characters
_KINDS = {"p": "FIFO", "s": "socket", "b": "device", "c": "device"}  # by find's letters
_TESTS = {"p": stat.S_ISFIFO, "s": stat.S_ISSOCK, "b": stat.S_ISBLK, "c": stat.S_ISCHR}


def refusal_lines(folder: Path) -> tuple[str, ...]:
    """Return the line that ends a script with special files in its prefix, and lists them in a step's ``folder``."""
    place = shlex.quote(str(folder / LIST))
    kinds = " -o ".join(f"-type {letter}" for letter in _KINDS)
    find = f"find \"$PREFIX\" \\( {kinds} \\) -printf '%y %P\\0' >{place}"
    return (f"{{ {find} || true; if [ -s {place} ]; then exit 1; fi; }} 2>/dev/null",)


def listed_files(folder: Path) -> tuple[str, ...]:
    """Return the special files for which the line of `refusal_lines` ended a script."""
    try:
        entries = os.fsdecode((folder / LIST).read_bytes()).split("\0")
    except FileNotFoundError:
        return ()
    return _named(entry.split(" ", 1) for entry in entries if entry)


def in_prefixes(prefixes: Iterable[Path]) -> tuple[str, ...]:
    """Return the special files in prefixes, for a script that has ended itself before the line that looks for them."""
    return _named((letter, str(path.relative_to(prefix))) for prefix in prefixes for letter, path in _special(prefix))


def message(names: tuple[str, ...]) -> str:
    """Return the error that names the files."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{REFUSED}{', '.join(names[:SHOWN])}{more}"


def _named(entries: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted(f"{path} ({_KINDS[letter]})" for letter, path in entries))


def _special(prefix: Path) -> Iterator[tuple[str, Path]]:
    for folder, _, names in os.walk(prefix):
        for path in (Path(folder, name) for name in names):
            mode = path.lstat().st_mode
            yield from ((letter, path) for letter, is_kind in _TESTS.items() if is_kind(mode))
