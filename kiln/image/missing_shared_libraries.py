"""The shared libraries that the programs of an image need, and those that it lacks."""

from __future__ import annotations

import functools
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.image.layers import LayerEntry

_ELF = b"\x7fELF"
# The driver's libraries come from the machine that runs the image, through NVIDIA's container toolkit.
DRIVER_LIBRARIES = frozenset({"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"})


def missing_libraries(entries: Iterable[LayerEntry]) -> dict[str, str]:
    """Return each library that the image needs and lacks, with the path of a file that needs it.

    A file of the library's name in any folder counts: search paths are not followed, for programs also load libraries
    explicitly. Libraries that a program opens by name at run time are not checked.
    """
    entries = tuple(entries)
    names = {PurePosixPath(entry.path).name for entry in entries} | DRIVER_LIBRARIES
    absent: dict[str, str] = {}
    for entry in entries:
        for soname in needed_libraries(entry.source) if entry.source is not None else ():
            if soname not in names:
                absent.setdefault(soname, entry.path)
    return absent


@functools.cache
def needed_libraries(path: Path) -> tuple[str, ...]:
    """Return the libraries that an ELF file needs; none for other files."""
    with path.open("rb") as file:
        if file.read(4) != _ELF:
            return ()
        from elftools.common.exceptions import ELFError
        from elftools.elf.dynamic import DynamicSection
        from elftools.elf.elffile import ELFFile

        try:
            sections = [section for section in ELFFile(file).iter_sections() if isinstance(section, DynamicSection)]
            return tuple(
                str(vars(tag)["needed"])  # set by pyelftools outside of its types
                for section in sections
                for tag in section.iter_tags("DT_NEEDED")
            )
        except ELFError:
            return ()
