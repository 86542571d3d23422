"""A recipe without its statements, and values that depend on conditions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.convert.v1_expression_builder import CHOICE, Expr, both, choice, literal, negated

if TYPE_CHECKING:
    from collections.abc import Mapping

Guards = tuple[Expr, ...]  # conditions, all of which have to hold


@dataclass(frozen=True, slots=True)
class RecipeLine:
    """A line of YAML: its number in meta.yaml (0 for an empty line), its text, and the conditions that it needs."""

    number: int
    text: str
    guards: Guards = ()


@dataclass(frozen=True, slots=True)
class ContextEntry:
    """An entry of ``context``: its name, its value, and the lines that set it, the last of them last."""

    name: str
    value: Expr
    numbers: tuple[int, ...]

    @property
    def number(self) -> int:
        """The last line that sets it."""
        return self.numbers[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expanded:
    """A recipe without statements; ``faults`` are what has no equivalent, by line; ``comments`` are whole lines."""

    lines: tuple[RecipeLine, ...]
    expressions: tuple[Expr, ...]
    settings: tuple[ContextEntry, ...]
    raw: tuple[str, ...]
    comments: Mapping[int, str]
    above: Mapping[int, tuple[str, ...]]  # the comments directly above a setting
    remarks: Mapping[int, str]  # comments that follow text
    faults: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Cases:
    """A value that depends on conditions: the first case that holds counts, and otherwise another value or nothing."""

    cases: tuple[tuple[Expr, Expr], ...]
    otherwise: Expr | None
    number: int = 0

    @property
    def expr(self) -> Expr:
        """The value as one expression."""
        result = self.otherwise
        for test, value in reversed(self.cases):
            result = choice(test, value, result)
        return result or literal("")


def assigned_value(old: Cases | None, guard: Expr | None, value: Expr, number: int = 0) -> Cases:
    """Return a value after an assignment, which may have a condition."""
    if guard is None:
        return Cases((), value, number)
    if old is None:
        return Cases(((guard, value),), None, number)
    if len(old.cases) == 1 and old.otherwise is None and negated(guard).text == old.cases[0][0].text:
        return Cases(old.cases, value, number)
    if value.level == CHOICE:
        value = Expr(f"({value.text})")
    return Cases(((guard, value), *(case for case in old.cases if case[0].text != guard.text)), old.otherwise, number)


def conjunction(guards: Guards) -> Expr | None:
    """Return the expression that holds where all conditions do; None for none."""
    result: Expr | None = None
    for guard in guards:
        result = guard if result is None else both(result, guard)
    return result
