"""Corrections of the order of sections: their lines are moved with the comments above them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEY = re.compile(r"(\s*)(?:'([^']+)'|\"([^\"]+)\"|([\w$-]+))\s*:(?:\s|$)")


def reordered(lines: Sequence[str], order: Sequence[str], indentation: str = "") -> list[str] | None:
    """Return lines with the blocks that begin at keys of this indentation in order; keys not in ``order`` come last.

    Lines before the first key stay. Blank lines between the blocks stay where they are, whatever block moves there.
    None means that a key stands there twice, so that moving it could change which one counts.
    """
    starts = [index for index, line in enumerate(lines) if _key(line, indentation)]
    names = [_key(lines[index], indentation) for index in starts]
    if len(set(names)) != len(names):
        return None
    starts = [_with_comments(lines, index, indentation) for index in starts]
    blocks, gaps = [], []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        block = list(lines[start:end])
        blank = 0
        while block and not block[-1].strip():
            blank += 1
            block.pop()
        blocks.append(block)
        gaps.append(list(lines[end - blank : end]))
    ranks = [order.index(name) if name in order else len(order) for name in names]
    sequence = [blocks[index] for index in sorted(range(len(blocks)), key=ranks.__getitem__)]
    body = [line for block, gap in zip(sequence, gaps, strict=True) for line in (*block, *gap)]
    return [*lines[: starts[0] if starts else 0], *body]


def _key(line: str, indentation: str) -> str:
    match = _KEY.match(line)
    return next(filter(None, match.groups()[1:]), "") if match and match[1] == indentation else ""


def _with_comments(lines: Sequence[str], index: int, indentation: str) -> int:
    """Return the first line of the comments and definitions right above a line."""
    while index and lines[index - 1].startswith((f"{indentation}#", f"{indentation}{{%")):
        index -= 1
    return index


def block_of(lines: Sequence[str], key: str) -> tuple[int, int] | None:
    """Return the range of lines below an outermost key; None if the key is missing or stands there twice."""
    starts = [index for index, line in enumerate(lines) if _key(line, "") == key]
    if len(starts) != 1:
        return None
    end = starts[0] + 1
    while end < len(lines) and (not lines[end].strip() or lines[end][0] in " \t#{"):
        end += 1
    while end > starts[0] + 1 and (not lines[end - 1].strip() or lines[end - 1][0] in "#{"):
        end -= 1
    return starts[0] + 1, end


def first_indentation(lines: Sequence[str]) -> str:
    """Return the indentation of the first key."""
    return next((match[1] for line in lines if (match := _KEY.match(line))), "")
