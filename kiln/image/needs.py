"""Which shared libraries the programs of an image need, and which of them it lacks."""

from __future__ import annotations

import functools
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kiln.image.layers import Entry

_ELF = b"\x7fELF"
# The driver's own libraries come from the machine that runs the image, through NVIDIA's container toolkit.
OF_THE_DRIVER = frozenset({"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"})


def missing(entries: Iterable[Entry]) -> dict[str, str]:
    """Return each library that is needed and nowhere in the image, with a path of what needs it.

    A library counts as there when a file of its name is, in whatever folder: search paths are not followed, for
    programs also load libraries by themselves. What a program opens by name while it runs is not seen.
    """
    entries = tuple(entries)
    there = {PurePosixPath(entry.path).name for entry in entries} | OF_THE_DRIVER
    lacking: dict[str, str] = {}
    for entry in entries:
        for soname in needed(entry.source) if entry.source is not None else ():
            if soname not in there:
                lacking.setdefault(soname, entry.path)
    return lacking


@functools.cache
def needed(path: Path) -> tuple[str, ...]:
    """Return the names of the libraries that a program or library asks for; none when the file is neither."""
    with path.open("rb") as file:
        if file.read(4) != _ELF:
            return ()
        from elftools.common.exceptions import ELFError
        from elftools.elf.dynamic import DynamicSection
        from elftools.elf.elffile import ELFFile

        try:
            sections = [section for section in ELFFile(file).iter_sections() if isinstance(section, DynamicSection)]
            return tuple(
                str(vars(tag)["needed"])  # set by pyelftools beyond what its types tell
                for section in sections
                for tag in section.iter_tags("DT_NEEDED")
            )
        except ELFError:
            return ()
