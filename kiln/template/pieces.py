"""Cut a template into pieces that compile apart, so that what a selector does not touch is compiled once.

A recipe is mostly plain lines and lines with one expression. Each construct that stands at the outermost level (an
expression, a ``set``, a whole ``if`` or ``for``) is a piece of its own; run one after the other in the same context,
the pieces give what the whole template gives.
"""

from __future__ import annotations

import re
from functools import lru_cache

# With these, pieces are not independent of each other, or of the text around them.
_WHOLE = re.compile(
    r"\{[{%#][-+]|[-+][}%#]\}|\{%\s*(?:macro|call|import|from|include|extends|block|raw|filter|autoescape|with|trans)\b"
)
_MARK = re.compile(r"\{\{|\{%|\{#")
_OPENING = re.compile(r"\s*(if|for)\b")
_CLOSING = re.compile(r"\s*(endif|endfor)\b")
_BLOCK_SET = re.compile(r"\s*(set\b[^=]*$|endset\b)")
_INSIDE = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[\[({]|[\])}]|%\}""", re.DOTALL)


class NotSeparable(Exception):
    """The template must be compiled as a whole."""


def cut(text: str) -> list[tuple[int, str, bool]]:
    """The pieces of a template: the line (from 0) at which each begins, its text, and whether it needs compiling.

    The pieces' texts, joined by line breaks, are the template.

    Raises:
        NotSeparable: it uses what only makes sense as a whole, such as macros or trimmed white space.
    """
    if _WHOLE.search(text):
        raise NotSeparable
    pieces: list[tuple[int, str, bool]] = []
    open_lines: list[str] = []
    depth = 0
    pending = ""
    for number, line in enumerate(text.removesuffix("\n").split("\n")):
        change = _scan(f"{pending}\n{line}" if pending else line)
        if not (open_lines or pending) and change == 0 and not _MARK.search(line):
            _add_plain(pieces, number, line)
            continue
        open_lines.append(line)
        if change is None:
            pending = f"{pending}\n{line}" if pending else line
            continue
        pending = ""
        depth += change
        if depth <= 0:
            pieces.append((number - len(open_lines) + 1, "\n".join(open_lines), True))
            open_lines, depth = [], 0
    if open_lines:
        raise NotSeparable  # something is never closed; the whole template says it best
    return pieces


def _add_plain(pieces: list[tuple[int, str, bool]], number: int, line: str) -> None:
    if pieces and not pieces[-1][2]:
        start, before, _ = pieces[-1]
        pieces[-1] = (start, f"{before}\n{line}", False)
    else:
        pieces.append((number, line, False))


@lru_cache(maxsize=8192)
def _scan(text: str) -> int | None:
    """By how many levels a text opens blocks (or closes them); None when it ends inside a construct.

    Raises:
        NotSeparable: a ``set`` has a block instead of a value.
    """
    change = at = 0
    while found := _MARK.search(text, at):
        end = text.find("#}", found.end()) + 2 if found.group() == "{#" else _end(text, found.end(), found.group())
        if end < 2 or end > len(text):
            return None
        if found.group() == "{%":
            inside = text[found.end() : end - 2]
            if _BLOCK_SET.match(inside):
                raise NotSeparable
            change += bool(_OPENING.match(inside)) - bool(_CLOSING.match(inside))
        at = end
    return change


def _end(text: str, at: int, mark: str) -> int:
    """Where a construct ends: behind its closing mark outside of texts and brackets; -1 when it does not."""
    depth = 0
    closing = "%}" if mark == "{%" else "}}"
    while True:
        found = _INSIDE.search(text, at)
        if found is None:
            return -1
        if depth == 0 and text.startswith(closing, found.start()):
            return found.start() + 2
        sign = found.group()
        if sign == "%}":  # inside brackets or an expression: an operator and a bracket
            sign = "}"
        depth += (sign in {"[", "(", "{"}) - (sign in {"]", ")", "}"})
        at = found.end()
