"""conda-build's hash of a folder's contents, which does not depend on the archive that they were in.

Source: compute_content_hash in conda_build/utils.py, and CEP 16, which describes it.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files
from kiln.errors import BuildFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CHARACTERS = 1 << 20


def folder_content_hash(folder: Path, algorithm: str, skip: Iterable[str] = ()) -> str:
    """Return the hash of all paths below a folder, and of what they are and contain, in the order of the paths.

    Text has the line ends of Unix, a path slashes for backslashes; of a link counts what it leads to. ``skip`` are
    relative paths that do not count; one that ends with a slash is a folder with all that is below.

    Raises:
        BuildFailed: for a path that is not a file, folder or link.
    """
    digest, skip = hashlib.new(algorithm), tuple(skip)
    for path in sorted(_relative_paths(folder)):
        name = path.replace("\\", "/")
        if any(_is_skipped_path(name, item) for item in skip):
            continue
        digest.update(os.fsencode(name))
        for part in _path_kind_and_content(folder / path, name):
            digest.update(part)
        digest.update(b"-")
    return digest.hexdigest()


def _relative_paths(folder: Path) -> Iterator[str]:
    for top, folders, names in files.walk(folder):
        for name in (*folders, *names):
            yield Path(top, name).relative_to(folder).as_posix()


def _is_skipped_path(name: str, item: str) -> bool:
    return item in {name, f"{name}/"} or (item.endswith("/") and name.startswith(item))


def _path_kind_and_content(path: Path, name: str) -> Iterator[bytes]:
    if path.is_symlink():
        yield b"L"
        yield os.fsencode(path.readlink()).replace(b"\\", b"/")
    elif path.is_dir():
        yield b"D"
    elif path.is_file():
        yield b"F"
        if _is_text_file(path):
            yield from _normalized_text(path)
        else:
            with path.open("rb") as file:
                yield from files.read_chunks(file)
    else:
        raise BuildFailed(f"{name[:200]!r} is not a file, folder or link", why="its content has no hash")


def _is_text_file(path: Path) -> bool:
    try:
        for _ in _normalized_text(path):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _normalized_text(path: Path) -> Iterator[bytes]:
    """Yield a file's text with the line ends of Unix, so that the result is the same for checkouts on Windows."""
    with io.TextIOWrapper(path.open("rb"), encoding="utf-8", newline=None) as file:
        while text := file.read(_CHARACTERS):
            yield text.encode()
