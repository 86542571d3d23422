"""Cut a template into pieces that compile separately, so that text unaffected by selectors is compiled once.

A recipe is mostly plain lines and lines with one expression. Each construct at the outermost level (an expression,
a ``set``, a whole ``if`` or ``for``) is a separate piece; run one after the other in the same context, the pieces
produce the same text as the whole template.
"""

from __future__ import annotations

import re
from functools import lru_cache

from kiln.lazy_pattern import lazy_pattern

# With these, pieces depend on each other, or on the text around them.
_NOT_SEPARABLE = lazy_pattern(
    r"\{[{%#][-+]|[-+][}%#]\}|\{%\s*(?:macro|call|import|from|include|extends|block|raw|filter|autoescape|with|trans)\b"
)
_MARK = lazy_pattern(r"\{\{|\{%|\{#")
_OPENING = lazy_pattern(r"\s*(if|for)\b")
_CLOSING = lazy_pattern(r"\s*(endif|endfor)\b")
_BLOCK_SET = lazy_pattern(r"\s*(set\b[^=]*$|endset\b)")
_MAX_LINES = 500  # of one construct, which is scanned again with each line; a longer one is almost certainly unclosed
_INSIDE = lazy_pattern(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[\[({]|[\])}]|%\}""", re.DOTALL)


class NotSeparable(Exception):
    """The template must be compiled as a whole."""


def cut_into_pieces(text: str) -> list[tuple[int, str, bool]]:
    """Return the pieces of a template: for each its first line (from 0), its text, and whether it needs compiling.

    The pieces' texts, joined by line breaks, are the template.

    Raises:
        NotSeparable: it uses constructs that affect the text around them, such as macros or trimmed white space.
    """
    if _NOT_SEPARABLE.search(text):
        raise NotSeparable
    pieces: list[tuple[int, str, bool]] = []
    open_lines: list[str] = []
    depth = 0
    pending = ""
    for number, line in enumerate(text.removesuffix("\n").split("\n")):
        change = _block_level_change(f"{pending}\n{line}" if pending else line)
        if not (open_lines or pending) and change == 0 and not _MARK.search(line):
            _add_plain_line(pieces, number, line)
            continue
        open_lines.append(line)
        if change is None:
            pending = f"{pending}\n{line}" if pending else line
            if pending.count("\n") > _MAX_LINES:
                raise NotSeparable
            continue
        pending = ""
        depth += change
        if depth <= 0:
            pieces.append((number - len(open_lines) + 1, "\n".join(open_lines), True))
            open_lines, depth = [], 0
    if open_lines:
        raise NotSeparable  # something is never closed; compiling the whole template gives the best error
    return pieces


def _add_plain_line(pieces: list[tuple[int, str, bool]], number: int, line: str) -> None:
    if pieces and not pieces[-1][2]:
        start, before, _ = pieces[-1]
        pieces[-1] = (start, f"{before}\n{line}", False)
    else:
        pieces.append((number, line, False))


@lru_cache(maxsize=8192)
def _block_level_change(text: str) -> int | None:
    """Return by how many levels a text opens (or closes) blocks; None when it ends inside a construct.

    Raises:
        NotSeparable: a ``set`` has a block instead of a value.
    """
    change = at = 0
    while opening := _MARK.search(text, at):
        end = (
            text.find("#}", opening.end()) + 2
            if opening.group() == "{#"
            else _end_of_construct(text, opening.end(), opening.group())
        )
        if end < 2 or end > len(text):
            return None
        if opening.group() == "{%":
            statement = text[opening.end() : end - 2]
            if _BLOCK_SET.match(statement):
                raise NotSeparable
            change += bool(_OPENING.match(statement)) - bool(_CLOSING.match(statement))
        at = end
    return change


def _end_of_construct(text: str, at: int, mark: str) -> int:
    """Return the index after a construct's closing mark outside of texts and brackets; -1 when it is not closed."""
    depth = 0
    closing = "%}" if mark == "{%" else "}}"
    while True:
        token = _INSIDE.search(text, at)
        if token is None:
            return -1
        if depth == 0 and text.startswith(closing, token.start()):
            return token.start() + 2
        sign = token.group()
        if sign == "%}":  # inside brackets or an expression this is an operator and a bracket
            sign = "}"
        depth += (sign in {"[", "(", "{"}) - (sign in {"]", ")", "}"})
        at = token.end()
