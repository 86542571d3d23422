"""Line selectors: ``text  # [expression]`` keeps a line where the expression holds.

As in conda-build, the bracket also counts without a ``#`` when it ends the line, comment lines become empty lines,
and a line whose selector does not hold is dropped, so that block scalars close up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from kiln.errors import SelectorFault, UnsafeTemplate, nearest
from kiln.model.place import Place
from kiln.template.expression import Invalid, MissingName, NotAllowed, compiled, evaluate
from kiln.template.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from kiln.template.names import Names

_LONGEST = 50_000
_KEY = re.compile(r"[\s-]*['\"]?([^\s:'\"]+)['\"]?\s*:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a file: its number from 1, what is kept of it, and its selector, if any.

    ``column`` is where the selector's expression begins, from 1; ``commented`` tells ``# [x]`` from a bare ``[x]``.
    """

    number: int
    text: str
    selector: str | None = None
    column: int = 0
    commented: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The lines that were kept, as one text, and the line of the file (from 1) that each was."""

    text: str
    numbers: tuple[int, ...]

    def line_of(self, line: int) -> int:
        """The file's line for a line of the text (both from 1)."""
        return self.numbers[min(line, len(self.numbers)) - 1] if self.numbers else 0


class Selectable:
    """A text with selectors; selecting twice with the same values costs one look-up."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.lines = lines_of(text)
        self._names: tuple[str, ...] | None = None
        self._keys: set[str] | None = None
        self._selected: Recent[tuple[object, ...], Selected] = Recent(256)
        self._plain = not any(line.selector for line in self.lines)

    def is_selected(self, key: str) -> bool:
        """Whether a selector decides about a line that gives this key, so that another may give it too."""
        if self._keys is None:
            self._keys = {found[1] for line in self.lines if line.selector and (found := _KEY.match(line.text))}
        return key in self._keys

    @property
    def selector_names(self) -> tuple[str, ...]:
        """Every name that a selector of the text may ask for."""
        if self._names is None:
            texts = {line.selector for line in self.lines if line.selector}
            self._names = tuple(sorted({name for text in texts for name in _names_in(text)}))
        return self._names

    def select(self, names: Names) -> Selected:
        """The text with the selectors applied.

        Raises:
            SelectorFault: a selector is no expression, or uses a name that nothing defines.
            UnsafeTemplate: a selector reaches further than selectors may.
        """
        key = () if self._plain else names.values_of(self.selector_names)
        found = self._selected.get(key)
        if found is None:
            found = self._selected[key] = self._apply(names)
        return found

    def _apply(self, names: Names) -> Selected:
        results: dict[str, bool] = {}
        kept = []
        for line in self.lines:
            if line.selector:
                if line.selector not in results:
                    results[line.selector] = holds(line, names, self.file)
                if not results[line.selector]:
                    continue
            kept.append(line)
        text = "".join(f"{line.text}\n" for line in kept) or "\n"
        return Selected(text=text, numbers=tuple(line.number for line in kept))


def holds(line: Line, names: Names, file: str) -> bool:
    """Whether a line's selector holds; a name without a value counts as False.

    Raises:
        SelectorFault, UnsafeTemplate: as for Selectable.select.
    """
    text = line.selector or ""
    at = Place(file=file, line=line.number, column=line.column)
    try:
        while True:
            try:
                return bool(evaluate(compiled(text), names.lookup))
            except MissingName as missing:
                # The replacement is textual, as in conda-build: without "cuda", "cuda_min" becomes "False_min".
                if missing.name in compiled(line.selector or "").names:
                    _check_known(missing.name, line, names, at)
                text = text.replace(missing.name, "False")
    except Invalid as error:
        raise SelectorFault(f"the selector [{line.selector}] is no expression", at=at, why=str(error)) from error
    except NotAllowed as error:
        raise UnsafeTemplate(f"the selector [{line.selector}] may not be evaluated", at=at, why=str(error)) from error


def _check_known(name: str, line: Line, names: Names, at: Place) -> None:
    # A bare [word] at a line's end is more often prose than a selector; conda-build drops such lines silently.
    if not line.commented or names.is_known(name):
        return
    at = Place(file=at.file, line=at.line, column=at.column + max((line.selector or "").find(name), 0))
    if names.doubts is not None and at in names.doubts:
        return
    fault = SelectorFault(
        f"the selector [{line.selector}] uses the unknown name {name!r}",
        at=at,
        why="no platform name, no variant key and no setting has this name, so it would silently count as False",
        hint=nearest(name, names.suggestions()) or "define it in conda_build_config.yaml, or correct the name",
    )
    if names.doubts is None:
        raise fault
    names.doubts[at] = fault


def _names_in(text: str) -> Iterator[str]:
    try:
        yield from compiled(text).names
    except (Invalid, NotAllowed):
        return


def lines_of(text: str) -> tuple[Line, ...]:
    """Split a text into lines and find each line's selector."""
    return tuple([Line(number=number, **_parsed(raw)) for number, raw in enumerate(text.splitlines(), 1)])


def reselected(text: str, names: Names, file: str) -> str:
    """A rendered text with selectors applied once more, as conda-build does.

    Raises:
        SelectorFault, UnsafeTemplate: as for Selectable.select.
    """
    kept = []
    for raw in text.splitlines():
        parsed = _parsed(raw)
        if "selector" not in parsed or holds(Line(number=0, **parsed), names, file):
            kept.append(parsed["text"])
    return "\n".join(kept) + "\n"


@lru_cache(maxsize=16384)
def _parsed(raw: str) -> dict[str, Any]:
    """What a line is made of: its text, and its selector's text, column and kind."""
    raw = raw.rstrip()
    if not raw or raw.lstrip().startswith("#"):
        return {"text": ""}
    found = _bracket(raw) if "[" in raw and "]" in raw and len(raw) <= _LONGEST else None
    if found is None:
        return {"text": raw}
    kept, start, end, commented = found
    quote = raw[-1] if raw[-1] in "'\"" else ""
    text = (raw[:kept] + quote).rstrip()
    return {"text": text, "selector": raw[start:end], "column": start + 1, "commented": commented}


def _bracket(raw: str) -> tuple[int, int, int, bool] | None:
    """Find the selector of a line: how much text stands before it, its start and end, and whether it is commented.

    After a ``#``, the last bracket counts that no parenthesis follows (so that Markdown links are left alone);
    without one, only a bracket that ends the line. Linear in the line's length.
    """
    pairs = list(_pairs(raw))
    hash_at = raw.find("#", 1)
    after = max(raw.rfind("("), raw.rfind(")"))
    commented = [pair for pair in pairs if pair[1] > after and hash_at != -1 and pair[0] > hash_at]
    bare = [pair for pair in pairs if pair[1] == len(raw) - 1 and pair[0] >= 1]
    choices = []
    if commented:
        choices.append((_before_space(raw, hash_at), *commented[-1], True))
    if bare:
        choices.append((_before_space(raw, bare[-1][0]), *bare[-1], False))
    if not choices:
        return None
    kept, start, end, is_comment = min(choices, key=lambda choice: choice[0])
    return kept, start + 1, end, is_comment


def _pairs(raw: str) -> Iterator[tuple[int, int]]:
    """Every ``[...]`` with something and no further bracket inside, as the positions of its two brackets."""
    start = -1
    for index, char in enumerate(raw):
        if char == "[":
            start = index
        elif char == "]":
            if start >= 0 and index > start + 1:
                yield start, index
            start = -1


def _before_space(raw: str, index: int) -> int:
    while index > 1 and raw[index - 1].isspace():
        index -= 1
    return index
