"""Compile the Python modules of an image, so that containers need not do it at each start."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln import process_runner
from kiln.errors import BuildFailed, program_output_with_margin
from kiln.image.layers import FILE, LayerEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

CACHE = "__pycache__"
_MODULE = re.compile(r".*/lib/python3\.\d+/.*\.py")


def compile_modules(entries: Iterable[LayerEntry], prefix: Path, *, seen_at: str) -> None:
    """Compile the modules among the entries in place with the prefix's Python, if it has one.

    One process compiles all of them in a fixed order with a fixed hash seed, for the result depends on these. Invalid
    modules, such as templates, are skipped.

    Raises:
        BuildFailed: if that Python cannot be run.
    """
    python = prefix / "bin" / "python"
    modules = sorted({entry.source for entry in entries if entry.source is not None and _is_python_module(entry)})
    if not modules or not python.exists():
        return
    for cache in {module.parent / CACHE for module in modules}:
        _remove_compiled_modules(cache)
    listing = prefix.parent / "modules.txt"
    listing.write_text("".join(f"{module}\n" for module in modules), encoding="utf-8")
    words = (python, "-sS", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
    result = process_runner.run((*words, "-s", prefix, "-p", seen_at, "-i", listing), env={"PYTHONHASHSEED": "0"})
    if result.exit_code not in {0, 1}:
        raise BuildFailed("the image's Python cannot compile its modules", why=program_output_with_margin(result.tail))


def with_compiled_modules(entries: Iterable[LayerEntry]) -> tuple[LayerEntry, ...]:
    """Return entries with the compiled modules added."""
    return tuple(item for entry in entries for item in (entry, *_compiled_module_entries(entry)))


def _compiled_module_entries(entry: LayerEntry) -> Iterator[LayerEntry]:
    if entry.source is None or not _is_python_module(entry):
        return
    folder = entry.path.rpartition("/")[0]
    for file in (entry.source.parent / CACHE).glob(f"{entry.source.stem}.*.pyc"):
        yield LayerEntry(path=f"{folder}/{CACHE}/{file.name}", mode=FILE, source=file)


def _is_python_module(entry: LayerEntry) -> bool:
    return entry.source is not None and _MODULE.fullmatch(entry.path) is not None


def _remove_compiled_modules(cache: Path) -> None:
    """Remove a package's compiled modules: links into the package cache, which must not be changed."""
    for file in cache.glob("*.pyc") if cache.is_dir() else ():
        file.unlink()
