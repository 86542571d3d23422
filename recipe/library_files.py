"""Collects the libraries for C and C++ that Bazel made for themselves, without the wheel, and checks them.

Usage: library_files.py SETTINGS FROM TO, where FROM is Bazel's folder of them. Standard library only.
"""

from __future__ import annotations

import mmap
import shutil
import sys
from pathlib import Path

import compile_plan

NAMES = ("tensorflow_framework", "tensorflow", "tensorflow_cc")


class BadLibrary(Exception):
    """A library is missing or incomplete; the text says what it lacks."""


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit code."""
    settings, source, target = map(Path, arguments)
    try:
        collect(source, target, compile_plan.setting(compile_plan.read(settings), "libraries", "symbols"))
    except (BadLibrary, compile_plan.BadPlan) as error:
        sys.stderr.write(f"library_files.py: {error}\n")
        return 1
    return 0


def collect(source: Path, target: Path, symbols: str) -> None:
    """Copy the libraries and the headers of a folder; raise BadLibrary if one lacks a symbol of the settings."""
    libraries = target / "lib"
    libraries.mkdir(parents=True)
    for name in NAMES:
        shutil.copyfile(require(source, name), file_in(libraries, name))
    for line in symbols.split("\n"):
        if line.strip():
            name, symbol = line.split()
            require_symbol(file_in(libraries, name), symbol)
    if (source / "include").is_dir():
        shutil.copytree(source / "include", target / "include")


def require(folder: Path, name: str) -> Path:
    """Return the file of a library in Bazel's folder."""
    path = file_in(folder, name)
    if not path.is_file():
        raise BadLibrary(f"the compile left no {path}")
    return path


def file_in(folder: Path, name: str) -> Path:
    """Return the path of a library in a folder, by the name that this system's libraries have."""
    return folder / (f"lib{name}.2.dylib" if sys.platform == "darwin" else f"lib{name}.so.2")


def require_symbol(library: Path, symbol: str) -> None:
    """Raise BadLibrary if a library does not name a symbol; macOS puts an underscore before each."""
    start = b"\0_" if library.suffix == ".dylib" else b"\0"
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data.find(start + symbol.encode() + b"\0") < 0:
            raise BadLibrary(f"{library.name} has no {symbol}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
