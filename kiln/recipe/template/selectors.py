"""Line selectors: ``text  # [expression]`` keeps a line where the expression holds.

As in conda-build, the bracket also counts without a ``#`` at the end of a line, comment lines become empty lines,
and a line whose selector does not hold is dropped, so that block scalars have no gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kiln.base.errors import SelectorFault, UnsafeTemplate, did_you_mean
from kiln.base.limits import errors
from kiln.base.patterns import lazy_pattern
from kiln.base.position import Place
from kiln.recipe.template.expression import (
    ExpressionError,
    InvalidExpression,
    MissingName,
    OperationNotAllowed,
    compile_expression,
    evaluate_expression,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.recipe.template.names import Namespace

_MAX_LENGTH = 50_000
_KEY = lazy_pattern(r"[\s-]*['\"]?([^\s:'\"]+)['\"]?\s*:")
_ONLY_KEY = lazy_pattern(r"[\s-]*['\"]?[\w/-]+['\"]?\s*:\s*")
Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedDict(dict[Key, Value], Generic[Key, Value]):
    """A dictionary that drops its oldest entry when it would hold more than ``max_entries``."""

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    def __setitem__(self, key: Key, value: Value) -> None:
        if key not in self and len(self) >= self._max_entries:
            del self[next(iter(self))]
        super().__setitem__(key, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorLine:
    """A line of a file: its number from 1, its text without the selector, and its selector, if any.

    ``column`` is where the selector's expression begins, from 1; ``commented`` is true for ``# [x]``, false for a bare
    ``[x]``.
    """

    number: int
    text: str
    selector: str | None = None
    column: int = 0
    commented: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedText:
    """The selected lines as one text, with each line's number in the file (from 1)."""

    text: str
    numbers: tuple[int, ...]

    def line_in_file(self, line: int) -> int:
        """Return the file's line number for a line of the text (both from 1)."""
        return self.numbers[min(line, len(self.numbers)) - 1] if self.numbers else 0


class SelectableText:
    """A text with selectors; repeated selection with the same values is cached."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.lines = lines_with_selectors(text)
        self._selected: BoundedDict[tuple[object, ...], SelectedText] = BoundedDict(256)
        self._plain = not any(line.selector for line in self.lines)

    def is_key_under_selector(self, key: str) -> bool:
        """Return whether a line that sets this key has a selector, so that another line may set it too."""
        return key in self._keys_under_selectors

    @cached_property
    def _keys_under_selectors(self) -> set[str]:
        return {result[1] for line in self.lines if line.selector and (result := _KEY.match(line.text))}

    @cached_property
    def lists_as_selectors(self) -> dict[Place, SelectorFault]:
        """A warning for each list in brackets at a line's end, by its place: it is a selector to conda-build."""
        lists = (line for line in self.lines if line.selector and not line.commented and _ONLY_KEY.fullmatch(line.text))
        return {
            (at := Place(file=self.file, line=line.number, column=line.column)): SelectorFault(
                f"[{line.selector}] is a selector, not a list, so {line.text.strip(' -:')} has no value from it",
                at=at,
                why="conda-build reads brackets at a line's end so, with or without a number sign before them",
                hint="write one '- item' a line",
            )
            for line in lists
        }

    @cached_property
    def selector_names(self) -> tuple[str, ...]:
        """The names in the text's selectors."""
        errors.record_place(self.file)
        texts = {line.selector for line in self.lines if line.selector}
        return tuple(sorted({name for text in texts for name in _names_in_selector(text)}))

    def select(self, names: Namespace) -> SelectedText:
        """Return the text with the selectors applied.

        Raises:
            SelectorFault: a selector is not an expression, or uses an undefined name.
            UnsafeTemplate: a selector uses what selectors may not.
        """
        key = () if self._plain else names.cache_key_values(self.selector_names)
        selected = self._selected.get(key)
        if selected is None:
            selected = self._selected[key] = self._apply_selectors(names)
        return selected

    def _apply_selectors(self, names: Namespace) -> SelectedText:
        results: dict[str, bool] = {}
        lines = []
        for line in self.lines:
            if line.selector:
                if line.selector not in results:
                    results[line.selector] = selector_holds(line, names, self.file)
                if not results[line.selector]:
                    continue
            lines.append(line)
        text = "".join(f"{line.text}\n" for line in lines) or "\n"
        return SelectedText(text=text, numbers=tuple(line.number for line in lines))


def selector_holds(line: SelectorLine, names: Namespace, file: str) -> bool:
    """Return whether a line's selector holds; a name without a value counts as False.

    Raises:
        SelectorFault, UnsafeTemplate: as for Selectable.select.
    """
    text = line.selector or ""
    at = Place(file=file, line=line.number, column=line.column)
    errors.record_place(file, line.number)
    try:
        while True:
            try:
                return bool(evaluate_expression(text, names.lookup))
            except MissingName as missing:
                # The replacement is textual, as in conda-build: without "cuda", "cuda_min" becomes "False_min".
                if missing.name in compile_expression(line.selector or "").names:
                    _report_unknown_name(missing.name, line, names, at)
                text = text.replace(missing.name, "False")
    except InvalidExpression as error:
        what = f"the selector [{line.selector}] is not an expression"
        raise SelectorFault(what, at=at, why=str(error), hint=_flow_list_hint(line)) from error
    except OperationNotAllowed as error:
        what = f"the selector [{line.selector}] is not allowed"
        raise UnsafeTemplate(what, at=at, why=str(error), hint=_flow_list_hint(line)) from error


def _flow_list_hint(line: SelectorLine) -> str:
    """Return a hint for a bare ``key: [a.txt, b.txt]``, which is meant as a list of YAML."""
    if line.commented or not (key := _KEY.match(line.text)):
        return ""
    return f"brackets at a line's end are a selector: give each item of {key[1]} a line of its own, '- ITEM'"


def _report_unknown_name(name: str, line: SelectorLine, names: Namespace, at: Place) -> None:
    # A bare [word] at a line's end is more often prose than a selector; conda-build drops these lines silently.
    if not line.commented or names.is_known(name):
        return
    at = Place(file=at.file, line=at.line, column=at.column + max((line.selector or "").find(name), 0))
    if names.doubts is not None and at in names.doubts:
        return
    fault = SelectorFault(
        f"the selector [{line.selector}] uses the unknown name {name!r}",
        at=at,
        why="it is not a platform name, a variant key or a setting, so conda-build silently counts it as False",
        hint=did_you_mean(name, names.suggested_names()) or "define it in conda_build_config.yaml, or correct the name",
    )
    if names.doubts is None:
        raise fault
    names.doubts[at] = fault


def _names_in_selector(text: str) -> Iterator[str]:
    try:
        yield from compile_expression(text).names
    except ExpressionError:
        return


def lines_with_selectors(text: str) -> tuple[SelectorLine, ...]:
    """Return a text's lines, each with its selector."""
    return tuple([SelectorLine(number=number, **_parse_line(raw)) for number, raw in enumerate(text.splitlines(), 1)])


def apply_selectors_again(text: str, names: Namespace, file: str) -> str:
    """Return a rendered text with selectors applied again, as conda-build does."""
    unselected = _text_if_without_selectors(text)
    if unselected is not None:
        return unselected
    lines = []
    for raw in text.splitlines():
        parsed = _parse_line(raw)
        if "selector" not in parsed or selector_holds(SelectorLine(number=0, **parsed), names, file):
            lines.append(parsed["text"])
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=64)
def _text_if_without_selectors(text: str) -> str | None:
    """Return a text without comment lines, the same at all names; None if a line has a selector."""
    lines = [_parse_line(raw) for raw in text.splitlines()]
    if any("selector" in line for line in lines):
        return None
    return "\n".join([line["text"] for line in lines]) + "\n"


@lru_cache(maxsize=16384)
def _parse_line(raw: str) -> dict[str, Any]:
    """Return the parts of a line: its text, and its selector's text, column and kind."""
    raw = raw.rstrip()
    if not raw or raw.lstrip().startswith("#"):
        return {"text": ""}
    bracket = _selector_bracket(raw) if "[" in raw and "]" in raw and len(raw) <= _MAX_LENGTH else None
    if bracket is None:
        return {"text": raw}
    length, start, end, commented = bracket
    quote = raw[-1] if raw[-1] in "'\"" else ""
    text = (raw[:length] + quote).rstrip()
    return {"text": text, "selector": raw[start:end], "column": start + 1, "commented": commented}


def _selector_bracket(raw: str) -> tuple[int, int, int, bool] | None:
    """Return a line's selector: the length of the text before it, its start and end, and whether it is commented.

    After a ``#``, the last bracket counts that no parenthesis follows (so that Markdown links are not selectors);
    without one, only a bracket that ends the line. Linear in the line's length.
    """
    pairs = list(_bracket_pairs(raw))
    hash_at = raw.find("#", 1)
    after = max(raw.rfind("("), raw.rfind(")"))
    commented = [pair for pair in pairs if pair[1] > after and hash_at != -1 and pair[0] > hash_at]
    bare = [pair for pair in pairs if pair[1] == len(raw) - 1 and pair[0] >= 1]
    choices = []
    if commented:
        choices.append((_index_of_preceding_space(raw, hash_at), *commented[-1], True))
    if bare:
        choices.append((_index_of_preceding_space(raw, bare[-1][0]), *bare[-1], False))
    if not choices:
        return None
    length, start, end, is_comment = min(choices, key=lambda choice: choice[0])
    return length, start + 1, end, is_comment


def _bracket_pairs(raw: str) -> Iterator[tuple[int, int]]:
    """Yield the positions of the brackets of every ``[...]`` that is not empty and has no bracket inside."""
    start = -1
    for index, char in enumerate(raw):
        if char == "[":
            start = index
        elif char == "]":
            if start >= 0 and index > start + 1:
                yield start, index
            start = -1


def _index_of_preceding_space(raw: str, index: int) -> int:
    while index > 1 and raw[index - 1].isspace():
        index -= 1
    return index
