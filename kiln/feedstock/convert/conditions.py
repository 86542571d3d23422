"""Conditions of a meta.yaml's parts, and its requirements, as recipe.yaml has them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from typing import TYPE_CHECKING

from kiln.feedstock.convert.composition import (
    ATOM,
    ConditionalValue,
    ExpressionText,
    conjunction,
    literal_expression,
    negation,
    unparenthesized,
    value_after_assignment,
)
from kiln.feedstock.convert.tree import DictPart, ListPart, RecipePart, ScalarPart, UnconvertiblePart
from kiln.recipe.pins import pin_run_as_build_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Pieces = tuple[str | ExpressionText, ...]


_TOKEN = re.compile("\ue000\\d+\ue001")
_EQUALS = re.compile(r"([^\s=<>!~]+)\s*=([^=\s]+)=(\S+)")
_BARE = re.compile("[0-9A-Za-z_.+\ue000\ue001-]+")
_OPERATORS = re.compile(r"[<>=!~*|,\s]")
_PIN = re.compile(r"pin_(?:subpackage|compatible)\(")
_PARTS = re.compile(r"([,|])")
EXPORTING_LANGUAGES = frozenset({"python", "r-base"})  # whose packages export their own bounds
# Where conda-build adds an asterisk to a bare version: in what it creates environments from (environ.py), and in run
# (render.finalize_metadata).
LOOSE = frozenset({"build", "host", "run", "test"})


def strict_match_spec(spec: str, section: str, plain: Callable[[str], bool] = lambda _: True) -> str:
    """Return a match spec as rattler-build takes it; ``plain`` says whether a token is a version without operators.

    A bare version matches its patches, too, where conda-build adds an asterisk to it, and elsewhere exactly.
    ``name=1.0=build`` is conda's older notation.
    """
    spec = " ".join(spec.split())
    if equals := _EQUALS.fullmatch(spec):
        version = "*" if equals[2] == "*" else f"=={equals[2]}" if "*" not in equals[2] else equals[2]
        return f"{equals[1]} {version} {equals[3]}"
    words = spec.split(" ")
    if len(words) < 2:
        return spec
    words[1] = "".join(_strict_version(part, section, plain, alone=len(words) == 2) for part in _PARTS.split(words[1]))
    return " ".join(words)


def _strict_version(part: str, section: str, plain: Callable[[str], bool], *, alone: bool) -> str:
    if not _BARE.fullmatch(part) or not all(map(plain, _TOKEN.findall(part))):
        return part
    return f"{part}.*" if section in LOOSE and alone else f"=={part}"


def pieces_with_rewritten_text(pieces: Pieces, rewrite: Callable[[str], str]) -> Pieces:
    """Return pieces after a change of their text, in which numbered tokens stand for the expressions."""
    exprs = [piece for piece in pieces if isinstance(piece, ExpressionText)]
    numbers = count()
    text = "".join(piece if isinstance(piece, str) else f"\ue000{next(numbers)}\ue001" for piece in pieces)
    parts = enumerate(re.split("\ue000(\\d+)\ue001", rewrite(text)))
    return tuple(exprs[int(words)] if index % 2 else words for index, words in parts if words)


@dataclass(frozen=True)
class SpecConverter:
    """Converts requirements; ``values`` are all values of each key of the variants, ``constants`` those of context."""

    values: Mapping[str, frozenset[str]]
    constants: Mapping[str, str]
    run_pins: Mapping[str, Mapping[str, str] | str]

    def convert(self, part: RecipePart, section: str) -> RecipePart:
        """Return a requirement in recipe.yaml's notation.

        Raises:
            UnconvertiblePart: it has no equivalent there.
        """
        if not isinstance(part, ScalarPart):
            raise UnconvertiblePart(part.number, "a requirement is text")
        if any("x.x" in piece.split() for piece in part.pieces if isinstance(piece, str)):
            raise UnconvertiblePart(part.number, "the requirement 'name x.x' has no equivalent; write the version out")
        first = part.pieces[0] if part.pieces else ""
        name = part.template_text
        if section == "run" and name in self.run_pins and name not in EXPORTING_LANGUAGES:
            lower, upper = pin_run_as_build_bounds(self.run_pins[name])
            bounds = f'lower_bound="{lower}", upper_bound="{upper}"'
            return replace(part, pieces=(ExpressionText(f'pin_compatible("{name}", {bounds})'),))
        if isinstance(first, ExpressionText) and _PIN.match(first.text):
            return self._converted_pin(part, first)
        return self._converted_text_spec(part, section)

    def _converted_pin(self, part: ScalarPart, pin: ExpressionText) -> ScalarPart:
        rest = [piece for piece in part.pieces[1:] if not isinstance(piece, str) or piece.strip()]
        if not rest:
            return replace(part, pieces=(pin,))
        stripped = tuple(piece.strip() if isinstance(piece, str) else piece for piece in rest)
        build = ScalarPart(pieces=stripped).as_expression
        if any(isinstance(piece, str) and " " in piece for piece in stripped):
            raise UnconvertiblePart(part.number, "a pin is followed by more than a build string")
        argument = build.text if build.is_constant else f"({build.text}) or none"
        return replace(part, pieces=(ExpressionText(f"{pin.text[:-1]}, build={argument})"),))

    def _converted_text_spec(self, part: ScalarPart, section: str) -> ScalarPart:
        exprs = [piece for piece in part.pieces if isinstance(piece, ExpressionText)]
        pieces = pieces_with_rewritten_text(
            part.pieces,
            lambda text: strict_match_spec(
                text, section, lambda token: self._has_bare_versions(exprs[int(token[1:-1])])
            ),
        )
        return replace(part, pieces=pieces)

    def _has_bare_versions(self, expr: ExpressionText) -> bool:
        """Return whether the values of an expression are bare versions, as far as they are known."""
        known = self.values.get(expr.text, frozenset())
        if expr.text in self.constants:
            known = frozenset({self.constants[expr.text]})
        return not any(_OPERATORS.search(value) for value in known)


_OWN = re.compile(r"\b(PKG_NAME|PKG_VERSION|build_number)\b")


@dataclass(kw_only=True)
class IfThenElsePart(RecipePart):
    """An item of a list that stands for others under a condition."""

    condition: str
    then: list[RecipePart] = field(default_factory=list)
    otherwise: list[RecipePart] = field(default_factory=list)


def flattened_items_with_conditions(parts: Iterable[RecipePart]) -> list[RecipePart]:
    """Return the items of a key's values, each with all of its conditions; a text counts as a list of one."""
    result: list[RecipePart] = []
    for part in parts:
        if isinstance(part, ListPart):
            items = [replace(item, guards=part.guards + item.guards) for item in part.items]
            if items and part.behind:
                items[0] = replace(items[0], above=[*items[0].above, part.behind])
            result.extend(items)
        elif not isinstance(part, ScalarPart) or part.pieces:
            result.append(part)
    return result


def grouped_by_condition(items: Iterable[RecipePart]) -> list[RecipePart]:
    """Return items with their conditions as ``if``: neighbors with the same condition share one."""
    groups = [(key, list(group)) for key, group in groupby(items, key=_first_condition)]
    result: list[RecipePart] = []
    for key, group in groups:
        if key is None:
            result.extend(group)
            continue
        test = group[0].guards[0]
        inner = grouped_by_condition([replace(item, guards=item.guards[1:]) for item in group])
        last = result[-1] if result else None
        if (
            isinstance(last, IfThenElsePart)
            and not last.otherwise
            and last.condition == unparenthesized(negation(test).text)
        ):
            last.otherwise = inner
        else:
            result.append(IfThenElsePart(number=group[0].number, condition=unparenthesized(test.text), then=inner))
    return result


def _first_condition(part: RecipePart) -> str | None:
    return part.guards[0].text if part.guards else None


def conditional_list(parts: list[RecipePart], items: Iterable[RecipePart] | None = None) -> ListPart | None:
    """Return a key's values, or converted ``items`` of them, as a list with conditions; None where there is nothing."""
    items = grouped_by_condition(flattened_items_with_conditions(parts) if items is None else items)
    if not items:
        return None
    above = [comment for part in parts if isinstance(part, ListPart) for comment in part.above]
    return ListPart(number=parts[0].number, items=items, above=above)


def conditional_list_or_text(parts: list[RecipePart]) -> ListPart | ScalarPart | None:
    """Return a key's values as a list with conditions where one of them is a list, else as one text."""
    return conditional_list(parts) if any(isinstance(part, ListPart) for part in parts) else conditional_text(parts)


def conditional_text(parts: list[RecipePart]) -> ScalarPart | None:
    """Return a key's text: of several with conditions, the last one whose condition holds, as in conda-build."""
    value: ConditionalValue | None = None
    texts = []
    for part in parts:
        if not isinstance(part, ScalarPart):
            raise UnconvertiblePart(part.number, "a text is expected here")
        if not part.pieces:
            continue
        texts.append(part)
        value = value_after_assignment(value, conjunction(part.guards), part.as_expression)
    if value is None:
        return None
    last = texts[-1]
    above = [comment for item in texts for comment in item.above]
    if not last.guards:
        return replace(last, above=above)
    behind = "  ".join(item.behind for item in texts if item.behind)
    return ScalarPart(number=texts[0].number, pieces=(value.as_expression,), above=above, behind=behind)


def require_unconditional(part: RecipePart) -> None:
    """Refuse a part that has conditions."""
    if part.guards:
        raise UnconvertiblePart(
            part.number, f"the condition {part.guards[0].text!r} is on something that has to stay whole"
        )


def unconditional_section(parent: DictPart, key: str) -> DictPart:
    """Return a section, empty where it is missing."""
    parts = [part for part in parent.values_of_key(key) if not (isinstance(part, ScalarPart) and not part.pieces)]
    if not parts:
        return DictPart()
    if len(parts) > 1 or not isinstance(parts[0], DictPart):
        raise UnconvertiblePart(parts[-1].number, f"the section {key!r} is not one mapping")
    require_unconditional(parts[0])
    return parts[0]


def is_empty_part(part: RecipePart | None) -> bool:
    """Return whether a part says nothing."""
    return part is None or (isinstance(part, ScalarPart) and not part.pieces) or part in (ListPart(), DictPart())


def literal_text_part(value: str) -> ScalarPart:
    """Return a text without expressions."""
    return ScalarPart(pieces=(value,))


def scalar_as_expression(given: ScalarPart) -> ExpressionText:
    """Return a text as an expression; a number that is not quoted stays a number."""
    is_number = given.plain and len(given.pieces) == 1 and str(given.pieces[0]).isdigit()
    return literal_expression(int(str(given.pieces[0]))) if is_number else given.as_expression


def with_names_substituted(part: RecipePart, values: Mapping[str, ExpressionText], key: str) -> RecipePart:
    """Return a part with expressions in the place of names; a build string knows the build number itself."""
    if isinstance(part, DictPart):
        return replace(part, pairs=[(name, with_names_substituted(item, values, name)) for name, item in part.pairs])
    if isinstance(part, ListPart):
        return replace(part, items=[with_names_substituted(item, values, key) for item in part.items])
    if not isinstance(part, ScalarPart):
        return part

    known = {name: value for name, value in values.items() if (name, key) != ("build_number", "string")}

    def replacement_text(match: re.Match[str]) -> str:
        return known[match[1]].text_at_precedence(ATOM) if match[1] in known else match[1]

    def with_names_replaced(piece: str | ExpressionText) -> str | ExpressionText:
        if isinstance(piece, str):
            return piece
        whole = known.get(piece.text)
        is_text = whole is not None and whole.is_constant
        return str(whole.constant) if whole and is_text else replace(piece, text=_OWN.sub(replacement_text, piece.text))

    return replace(part, pieces=tuple(map(with_names_replaced, part.pieces)))
