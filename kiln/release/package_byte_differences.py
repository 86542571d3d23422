"""The differences of two packages, file by file, and where their contents begin to differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.conda_package import reader

if TYPE_CHECKING:
    from pathlib import Path

MOST = 20  # differences that are named
LARGEST = 1 << 20  # bytes of a file whose content is compared
LONGEST = 60  # characters of a line that are shown
_NAMES = ("content", "mode", "time", "kind")


def described_differences(one: Path, other: Path) -> list[str]:
    """Return which files of two packages are not the same, at most twenty, and the first place in each."""
    first, second = _member_attributes(one), _member_attributes(other)
    lines = [f"{name}: only in {'the first' if name in first else 'the second'}" for name in first.keys() ^ second]
    changed = [name for name in first.keys() & second.keys() if first[name] != second[name]]
    paths = sorted(changed)[:MOST]
    texts = [_small_file_contents(package, set(paths)) for package in (one, other)]
    for name in paths:
        place = described_content_difference(*(text.get(name) for text in texts))
        lines.append(f"{name}: {_names_of_changed_attributes(first[name], second[name])}{place}")
    return sorted(lines)[:MOST] or ["only the compression: all files are identical"]


def described_content_difference(one: bytes | None, other: bytes | None) -> str:
    """Return in words where two contents begin to differ; empty where one is too large to compare."""
    if one is None or other is None or one == other:
        return ""
    try:
        lines = [data.decode().split("\n") for data in (one, other)]
    except UnicodeDecodeError:
        place = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        return f" (from byte {place:,}; {len(one):,} and {len(other):,} bytes)"
    pairs = enumerate(zip(*lines, strict=False), 1)
    number, pair = next(((number, pair) for number, pair in pairs if pair[0] != pair[1]), (0, ("", "")))
    if not number:
        return f" ({len(lines[0])} and {len(lines[1])} lines)"
    return f" (line {number}: {_line_excerpt(*pair)} and {_line_excerpt(*reversed(pair))})"


def _line_excerpt(line: str, other: str) -> str:
    """Return a line from a little before where it differs from another one."""
    place = next((i for i, (a, b) in enumerate(zip(line, other, strict=False)) if a != b), 0)
    start = max(0, place - LONGEST // 2)
    return ascii(("..." if start else "") + line[start : start + LONGEST])


def _names_of_changed_attributes(one: tuple[Any, ...], other: tuple[Any, ...]) -> str:
    return ", ".join(name for name, first, second in zip(_NAMES, one, other, strict=True) if first != second)


def _member_attributes(package: Path) -> dict[str, tuple[Any, ...]]:
    with reader.open_package_members(package) as members:
        return {
            member.name: (
                files.open_file_sha256(content) if content else member.linkname,
                member.mode,
                member.mtime,
                member.type,
            )
            for member, content in members
        }


def _small_file_contents(package: Path, names: set[str]) -> dict[str, bytes]:
    if not names:
        return {}
    with reader.open_package_members(package) as members:
        return {
            member.name: content.read()
            for member, content in members
            if member.name in names and content and member.size <= LARGEST
        }


def feedstock_folder_in_placeholders(package: Path) -> str:
    """Return the feedstock's folder that a package was built in, by its placeholders; empty where it has none."""
    paths = reader.read_info_json_object(package, "paths.json").get("paths")
    for item in paths if isinstance(paths, list) else ():
        placeholder = item.get("prefix_placeholder") if isinstance(item, dict) else None
        if isinstance(placeholder, str) and "/build_artifacts/" in placeholder:
            return placeholder.partition("/build_artifacts/")[0]
    return ""
