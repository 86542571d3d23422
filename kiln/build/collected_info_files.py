"""Read the files that a package gets in ``info``, as planned: files made of parts, and trees of files."""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from kiln.conda_package.reader import InfoFile
from kiln.errors import BuildFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LARGEST = 1 << 27  # bytes of all files; readers of packages refuse more metadata than twice that
# Folders and files that are not part of a recipe: of version control, of desktops, and of running modules from it.
FOREIGN = frozenset((".git", ".hg", ".svn", ".DS_Store", "__pycache__"))


def collect_info_files(entries: Iterable[dict[str, Any]]) -> dict[str, InfoFile]:
    """Return the files of planned entries by their names below ``info/``; a later entry replaces an earlier one.

    Raises:
        BuildFailed: a file is missing or outside its recipe, or all of them are too large.
    """
    files: dict[str, InfoFile] = {}
    left = LARGEST
    for entry in entries:
        for name, parts in _files_of_tree(entry) if "tree" in entry else _file_made_of_parts(entry):
            data, mode = b"", 0o644
            for part in parts:  # a file can be executed if its last part can
                limit = left - len(data)
                more = _read_within_limit(part, name, limit) if isinstance(part, Path) else part.encode()
                if more is None or len(more) > limit:
                    raise BuildFailed(
                        f"info/{name} and the files before it have more than {LARGEST:,} bytes",
                        why="the package contains its recipe and the files of its tests",
                        hint="keep sources out of the recipe's folder, or set build/include_recipe to false",
                    )
                data += more
                mode = _normalized_file_mode(part) if isinstance(part, Path) else mode
            left -= len(data)
            files[name] = InfoFile(data=data, mode=mode)
    return files


def _read_within_limit(file: Path, name: str, limit: int) -> bytes | None:
    """Return the bytes of a file; None, without reading it, where it has more than the limit."""
    try:
        size = file.stat().st_size if file.is_file() else -1
        data = file.read_bytes() if 0 <= size <= limit else None
    except OSError as error:
        raise BuildFailed(f"{file.name}, for info/{name}, cannot be read", why=str(error)) from error
    if size < 0:
        raise BuildFailed(f"{file.name}, for info/{name}, cannot be read", why="it is missing, or not a regular file")
    return data


def _file_made_of_parts(entry: dict[str, Any]) -> Iterator[tuple[str, list[str | Path]]]:
    """Yield the one file of an entry: texts and files, which must be in the folder that the entry gives for them."""
    parts: list[str | Path] = []
    for part in entry["parts"]:
        file = None if isinstance(part, str) else Path(part["file"])
        if file is not None and not file.resolve().is_relative_to(Path(part["within"]).resolve()):
            raise BuildFailed(
                f"{file.name}, for info/{entry['to']}, is outside the recipe's folder",
                why="a package contains files of its recipe alone, and links do not lead out of it",
                hint="put the file itself into the recipe's folder",
            )
        parts.append(part if file is None else file)
    yield _validated_info_name(entry["to"]), parts


def _files_of_tree(entry: dict[str, Any]) -> Iterator[tuple[str, list[str | Path]]]:
    """Yield the files of a folder that match an entry's patterns, and all files in folders that do.

    With ``below``, a pattern matches at any depth. A link that leads out of the folder is left out: what it leads to is
    not the recipe's.
    """
    top = Path(entry["tree"])
    root, without = top.resolve(), {top / name for name in entry.get("without", ())}
    for pattern in entry["patterns"]:
        for match in _glob_inside_folder(top, pattern, below=bool(entry.get("below"))):
            for file in sorted(match.rglob("*")) if match.is_dir() and not match.is_symlink() else [match]:
                place = file.relative_to(top)
                if file in without or FOREIGN.intersection(place.parts) or not file.is_file():
                    continue
                if not file.resolve().is_relative_to(root):
                    text = f"info/{entry['to']}: {place} is left out, a link that leads out of the folder\n"
                    sys.stdout.write(text)
                    continue
                yield _validated_info_name(f"{entry['to']}/{place.as_posix()}"), [file]


def _glob_inside_folder(folder: Path, pattern: str, *, below: bool) -> list[Path]:
    """Return the files that match a pattern; none for one that is absolute or leads out of the folder."""
    if PurePosixPath(pattern).is_absolute() or ".." in PurePosixPath(pattern).parts:
        return []
    try:
        return sorted(folder.rglob(pattern) if below else folder.glob(pattern))
    except (ValueError, NotImplementedError):  # not a pattern
        return []


def _normalized_file_mode(file: Path) -> int:
    return 0o755 if file.stat().st_mode & 0o111 else 0o644


def _validated_info_name(text: str) -> str:
    """Return the name of a file below ``info/``.

    Raises:
        BuildFailed: it leads out of there.
    """
    name = PurePosixPath(text)
    if name.is_absolute() or ".." in name.parts:
        raise BuildFailed(f"info/{text} is outside the package's metadata")
    return str(name)
