"""Expressions of recipe.yaml as text, put together with the parentheses that they need, and choices by conditions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import nodes

# How tightly an expression binds, from the loosest.
CHOICE, OR, AND, NOT, COMPARE, SUM, CONCAT, PRODUCT, UNARY, FILTER, ATOM = range(11)
_OPPOSITE = {" == ": " != ", " != ": " == "}

_PIN_ARGUMENTS = {
    "pin_subpackage": ("name", "min_pin", "max_pin", "exact"),
    "pin_compatible": ("name", "lower_bound", "upper_bound", "min_pin", "max_pin", "exact"),
}
_EMPTY = '""'  # an empty bound, which means none
_BOUNDS = (("lower_bound", "min_pin"), ("upper_bound", "max_pin"))


class UnsupportedExpression(Exception):
    """An expression that recipe.yaml has no notation for."""


@dataclass(frozen=True, slots=True)
class ExpressionText:
    """An expression of recipe.yaml: its text, how tightly it binds, and its value if that is known."""

    text: str
    level: int = ATOM
    constant: Any = field(default=None)

    @property
    def is_constant(self) -> bool:
        """True if the value is known."""
        return self.constant is not None

    def text_at_precedence(self, level: int) -> str:
        """Return the text for a place that binds at least so tightly, in parentheses where it needs them."""
        return self.text if self.level >= level else f"({self.text})"


def literal_expression(value: Any) -> ExpressionText:
    """Return the expression of a value."""
    if isinstance(value, (list, tuple)):
        return ExpressionText(f"[{', '.join(literal_expression(item).text for item in value)}]", constant=list(value))
    if value is None:
        return ExpressionText("none")
    if isinstance(value, str) and "\\" in value and '"' not in value and "'" not in value:
        return ExpressionText('"' + value.replace("\\", "\\\\") + '"', constant=value)
    return ExpressionText(json.dumps(value, ensure_ascii=False), constant=value)


def conditional_expression(test: ExpressionText, yes: ExpressionText, other: ExpressionText | None) -> ExpressionText:
    """Return the expression that is one value where a test holds, and else another or nothing."""
    text = f"{yes.text_at_precedence(OR)} if {test.text_at_precedence(OR)}"
    return ExpressionText(text if other is None else f"{text} else {other.text_at_precedence(CHOICE)}", CHOICE)


def and_expression(one: ExpressionText, other: ExpressionText) -> ExpressionText:
    """Return the expression that holds where two do."""
    return ExpressionText(f"{one.text_at_precedence(AND)} and {other.text_at_precedence(AND)}", AND)


def negation(test: ExpressionText) -> ExpressionText:
    """Return the expression that holds where another one does not."""
    if test.text.startswith("not ") and test.level == NOT:
        return ExpressionText(test.text[4:], COMPARE)
    if test.level == COMPARE:
        for sign, other in _OPPOSITE.items():
            if test.text.count(sign) == 1 and not any(word in test.text for word in (" < ", " > ", " in ")):
                return ExpressionText(test.text.replace(sign, other), COMPARE)
    return ExpressionText(f"not {test.text_at_precedence(COMPARE)}", NOT)


def unparenthesized(text: str) -> str:
    """Return an expression's text without the parentheses around all of it."""
    while re.fullmatch(r"\(.*\)", text, re.DOTALL) and _has_balanced_parentheses(text[1:-1]):
        text = text[1:-1]
    return text


def _has_balanced_parentheses(text: str) -> bool:
    depth = 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            return False
    return depth == 0


Guards = tuple[ExpressionText, ...]  # conditions, all of which have to hold


@dataclass(frozen=True, slots=True)
class ConditionalValue:
    """A value that depends on conditions: the first case that holds counts, and otherwise another value or nothing."""

    cases: tuple[tuple[ExpressionText, ExpressionText], ...]
    otherwise: ExpressionText | None
    number: int = 0

    @property
    def as_expression(self) -> ExpressionText:
        """The value as one expression."""
        result = self.otherwise
        for test, value in reversed(self.cases):
            result = conditional_expression(test, value, result)
        return result or literal_expression("")


def value_after_assignment(
    old: ConditionalValue | None, guard: ExpressionText | None, value: ExpressionText, number: int = 0
) -> ConditionalValue:
    """Return a value after an assignment, which may have a condition."""
    if guard is None:
        return ConditionalValue((), value, number)
    if old is None:
        return ConditionalValue(((guard, value),), None, number)
    if len(old.cases) == 1 and old.otherwise is None and negation(guard).text == old.cases[0][0].text:
        return ConditionalValue(old.cases, value, number)
    if value.level == CHOICE:
        value = ExpressionText(f"({value.text})")
    return ConditionalValue(
        ((guard, value), *(case for case in old.cases if case[0].text != guard.text)), old.otherwise, number
    )


def conjunction(guards: Guards) -> ExpressionText | None:
    """Return the expression that holds where all conditions do; None for none."""
    result: ExpressionText | None = None
    for guard in guards:
        result = guard if result is None else and_expression(result, guard)
    return result


def guards_without(guards: Guards, known: Guards) -> Guards:
    """Return the conditions that are not among the known ones."""
    texts = {guard.text for guard in known}
    return tuple(guard for guard in guards if guard.text not in texts)


def pin_arguments(function: str, node: nodes.Call, text: Callable[[nodes.Expr], str]) -> str:
    """Return the arguments of a pin in recipe.yaml; an explicit bound has precedence over the number of places."""
    given = dict(zip(_PIN_ARGUMENTS[function], map(text, node.args), strict=False))
    given |= {str(keyword.key): text(keyword.value) for keyword in node.kwargs}
    arguments = [given.pop(next(iter(given)))] if given else []
    if given.get("exact") in {"true", "1"}:
        return ", ".join([*arguments, "exact=True"])
    for bound, places in _BOUNDS:
        value = given.get(bound)
        value = given.get(places) if value in {None, "none", _EMPTY} else value
        if value is not None:
            arguments.append(f"{bound}={'none' if value == _EMPTY else value}")
    return ", ".join(arguments)
