"""Python's modules compiled ahead, so that no container has to do it at its start, where it cannot keep the result."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln import command
from kiln.errors import BuildFailed, excerpt
from kiln.image.layers import FILE, Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

CACHE = "__pycache__"
_MODULE = re.compile(r".*/lib/python3\.\d+/.*\.py")


def compile_all(entries: Iterable[Entry], prefix: Path, *, seen_at: str) -> None:
    """Compile the modules among the entries where they lie, with the prefix's own Python; nothing without one.

    One process compiles all of them, in one order and with one seed of hashes, since what it writes depends on that.
    A module that is no valid source stays as it is, as some that serve as templates are.

    Raises:
        BuildFailed: when that Python cannot be run.
    """
    python = prefix / "bin" / "python"
    modules = sorted({entry.source for entry in entries if entry.source is not None and _is_module(entry)})
    if not modules or not python.exists():
        return
    for cache in {module.parent / CACHE for module in modules}:
        _clear(cache)
    listing = prefix.parent / "modules.txt"
    listing.write_text("".join(f"{module}\n" for module in modules), encoding="utf-8")
    words = (python, "-sS", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
    result = command.run((*words, "-s", prefix, "-p", seen_at, "-i", listing), env={"PYTHONHASHSEED": "0"})
    if result.exit_code not in {0, 1}:
        raise BuildFailed("the image's Python cannot compile its modules", why=excerpt(result.tail))


def beside(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return entries with the compiled form of each module among them."""
    return tuple(each for entry in entries for each in (entry, *_compiled(entry)))


def _compiled(entry: Entry) -> Iterator[Entry]:
    if entry.source is None or not _is_module(entry):
        return
    folder = entry.path.rpartition("/")[0]
    for made in (entry.source.parent / CACHE).glob(f"{entry.source.stem}.*.pyc"):
        yield Entry(path=f"{folder}/{CACHE}/{made.name}", mode=FILE, source=made)


def _is_module(entry: Entry) -> bool:
    return entry.source is not None and _MODULE.fullmatch(entry.path) is not None


def _clear(cache: Path) -> None:
    """Remove what a package brought compiled: a link into the package cache, which must not be written to."""
    for file in cache.glob("*.pyc") if cache.is_dir() else ():
        file.unlink()
