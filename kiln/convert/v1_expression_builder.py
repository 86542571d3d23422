"""Expressions of recipe.yaml as text: put together with the parentheses that they need."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

# How tightly an expression binds, from the loosest.
CHOICE, OR, AND, NOT, COMPARE, SUM, CONCAT, PRODUCT, UNARY, FILTER, ATOM = range(11)
_OPPOSITE = {" == ": " != ", " != ": " == "}


class Unsupported(Exception):
    """An expression that recipe.yaml has no notation for."""


@dataclass(frozen=True, slots=True)
class Expr:
    """An expression of recipe.yaml: its text, how tightly it binds, and its value if that is known."""

    text: str
    level: int = ATOM
    constant: Any = field(default=None)

    @property
    def is_constant(self) -> bool:
        """True if the value is known."""
        return self.constant is not None

    def within(self, level: int) -> str:
        """Return the text for a place that binds at least so tightly, in parentheses where it needs them."""
        return self.text if self.level >= level else f"({self.text})"


def literal(value: Any) -> Expr:
    """Return the expression of a value."""
    if isinstance(value, (list, tuple)):
        return Expr(f"[{', '.join(literal(item).text for item in value)}]", constant=list(value))
    if value is None:
        return Expr("none")
    if isinstance(value, str) and "\\" in value and '"' not in value and "'" not in value:
        return Expr('"' + value.replace("\\", "\\\\") + '"', constant=value)
    return Expr(json.dumps(value, ensure_ascii=False), constant=value)


def choice(test: Expr, yes: Expr, other: Expr | None) -> Expr:
    """Return the expression that is one value where a test holds, and else another or nothing."""
    if other is None:
        return Expr(f"{yes.within(OR)} if {test.within(OR)}", CHOICE)
    return Expr(f"{yes.within(OR)} if {test.within(OR)} else {other.within(CHOICE)}", CHOICE)


def both(one: Expr, other: Expr) -> Expr:
    """Return the expression that holds where two do."""
    return Expr(f"{one.within(AND)} and {other.within(AND)}", AND)


def negated(test: Expr) -> Expr:
    """Return the expression that holds where another one does not."""
    if test.text.startswith("not ") and test.level == NOT:
        return Expr(test.text[4:], COMPARE)
    if test.level == COMPARE:
        for sign, other in _OPPOSITE.items():
            if test.text.count(sign) == 1 and not any(word in test.text for word in (" < ", " > ", " in ")):
                return Expr(test.text.replace(sign, other), COMPARE)
    return Expr(f"not {test.within(COMPARE)}", NOT)


def unparenthesized(text: str) -> str:
    """Return an expression's text without the parentheses around all of it."""
    while re.fullmatch(r"\(.*\)", text, re.DOTALL) and _balanced(text[1:-1]):
        text = text[1:-1]
    return text


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            return False
    return depth == 0
