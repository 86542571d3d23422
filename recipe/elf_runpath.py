"""Reads and rewrites the library search path inside a shared object, in place where it fits.

A TensorFlow library has more than a gigabyte; patchelf reads and writes all of it, while the search path is a string of
a few bytes that only gets shorter here.
"""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# The numbers of the ELF specification (System V ABI, chapters 4 and 5).
ELF_64_LITTLE = b"\x7fELF\x02\x01"
PT_LOAD, PT_DYNAMIC = 1, 2
DT_NULL, DT_STRTAB, DT_RPATH, DT_RUNPATH = 0, 5, 15, 29
PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
DYNAMIC_ENTRY = struct.Struct("<qQ")


class NotElf(ValueError):
    """The file is not a 64-bit little-endian ELF object."""


@dataclass(frozen=True)
class RunPath:
    """The search path of a shared object: its text, and the offset of that text in the file."""

    text: str
    offset: int


@dataclass(frozen=True)
class _Segment:
    """One program header: kind, offset in the file, address in memory, size in the file."""

    kind: int
    offset: int
    address: int
    size: int


def read(file: BinaryIO) -> RunPath | None:
    """Return the search path of an open object, DT_RUNPATH before DT_RPATH; None when it has neither."""
    segments = list(_segments(file))
    dynamic = dict(_dynamic(file, segments))
    name = dynamic.get(DT_RUNPATH, dynamic.get(DT_RPATH))
    if name is None:
        return None
    offset = _file_offset(segments, dynamic[DT_STRTAB]) + name
    return RunPath(text=_string(file, offset), offset=offset)


def rewrite(path: Path, change: Callable[[str], str]) -> bool:
    """Replace a shared object's search path by `change` of the old one; return whether the file changed.

    An object without a search path is unchanged. Raises NotElf, and subprocess.CalledProcessError from patchelf, which
    runs only when the new text is longer than the old.
    """
    with path.open("r+b") as file:
        old = read(file)
        if old is None:
            return False
        new = change(old.text)
        if new == old.text:
            return False
        if len(new) <= len(old.text):
            # The bytes after the new end stay: a linker may let other names share the tail of a string.
            file.seek(old.offset)
            file.write(new.encode() + b"\0")
            return True
    subprocess.run(["patchelf", "--set-rpath", new, str(path)], check=True)
    return True


def _segments(file: BinaryIO) -> Iterator[_Segment]:
    file.seek(0)
    header = file.read(64)
    if len(header) < 64 or not header.startswith(ELF_64_LITTLE):
        raise NotElf(getattr(file, "name", "the file"))
    (start,) = struct.unpack_from("<Q", header, 32)
    size, count = struct.unpack_from("<HH", header, 54)
    for index in range(count):
        file.seek(start + index * size)
        kind, _, offset, address, _, in_file, _, _ = PROGRAM_HEADER.unpack(file.read(PROGRAM_HEADER.size))
        yield _Segment(kind=kind, offset=offset, address=address, size=in_file)


def _dynamic(file: BinaryIO, segments: list[_Segment]) -> Iterator[tuple[int, int]]:
    for segment in segments:
        if segment.kind == PT_DYNAMIC:
            file.seek(segment.offset)
            for tag, value in DYNAMIC_ENTRY.iter_unpack(file.read(segment.size)):
                if tag == DT_NULL:
                    return
                yield tag, value


def _file_offset(segments: list[_Segment], address: int) -> int:
    for segment in segments:
        if segment.kind == PT_LOAD and segment.address <= address < segment.address + segment.size:
            return segment.offset + address - segment.address
    raise NotElf(f"address {address:#x} is in no segment")


def _string(file: BinaryIO, offset: int) -> str:
    file.seek(offset)
    text = b""
    while b"\0" not in text:
        piece = file.read(4096)
        if not piece:
            raise NotElf("a string runs past the end of the file")
        text += piece
    return text.split(b"\0", 1)[0].decode()
