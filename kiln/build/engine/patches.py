"""Refuse patches that name files outside of the folder to which they are applied, as GNU patch does.

The engine's own patcher follows such names. They are read from all forms of a patch: unified and context, and git's
extended headers. A patch that makes a link, and then a file below it, writes where the link leads.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from kiln.base import files
from kiln.base.errors import RecipeFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LARGEST = 256 << 20  # bytes
_NAME = r'("(?:[^"\\]|\\.)*"|[^\t\n\r]*)'
_HEADER = re.compile(rf" *(?:---|\+\+\+|\*\*\*|Index:|rename (?:from|to)|copy (?:from|to)) {_NAME}")
_GIT_HEADER = re.compile(r" *diff --git (.*)")
_HUNK = re.compile(r" *@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_MODE = re.compile(r"^(?:new file mode|new mode) 120000\s*$", re.MULTILINE)
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)")


def require_safe_patches(patches: Iterable[Path]) -> None:
    """Refuse patches that may write out of their folder.

    Raises:
        RecipeFault: with the name.
    """
    links: set[str] = set()
    for patch in patches:
        try:
            text = files.read_regular_file(patch, LARGEST).decode("utf-8", "surrogateescape")
        except ValueError as error:
            raise RecipeFault(f"the patch {patch.name} is too large", why=str(error)) from error
        except OSError:  # a missing one is the engine's to report
            continue
        links |= set(_made_links(text))
        for name in _names(text):
            _require_inside(name, patch)
            if any(name.startswith(f"{link}/") for link in links):
                raise RecipeFault(
                    f"the patch {patch.name} writes {name[:200]!r}", why="it is below a link that it makes"
                )


def _names(text: str) -> Iterator[str]:
    """Yield the names in a patch's headers; lines that are removed or added may look like such."""
    old = new = 0  # lines of the hunk that are still to come
    for line in text.split("\n"):
        if (old > 0 or new > 0) and not line.startswith("diff --git "):
            old -= not line.startswith(("+", "\\"))
            new -= not line.startswith(("-", "\\"))
        elif match := _HUNK.match(line):
            old, new = (1 if count is None else int(count) for count in match.groups())
        else:
            old = new = 0
            if match := _HEADER.match(line):
                yield _unquoted(match[1])
            elif match := _GIT_HEADER.match(line):
                yield from (name for word in match[1].split(" ") if (name := _unquoted(word)))


def _made_links(text: str) -> Iterator[str]:
    """Yield the names of the links that a patch makes, with git's prefix and without it."""
    for section in re.split(r"(?m)^(?=diff --git )", text):
        if _MODE.search(section):
            for name in _names(section):
                yield name
                yield name.partition("/")[2]


def _require_inside(name: str, patch: Path) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if name != "/dev/null" and (path.is_absolute() or ".." in path.parts):
        raise RecipeFault(
            f"the patch {patch.name} names {name[:200]!r}",
            why="it leads out of the folder to which the patch is applied",
            hint="write the patch again, relative to the source's folder",
        )


def _unquoted(name: str) -> str:
    """Return a name without git's quotes, which stand around names with special characters."""
    name = name.strip()
    if not name.startswith('"'):
        return name
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)) if match[1].isdecimal() else match[1], name.strip('"'))
