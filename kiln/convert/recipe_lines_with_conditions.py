"""A recipe after its statements: lines of YAML with their conditions, expressions, and entries for context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.convert.recipe_yaml_expression_composition import ExpressionText, Guards


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
    value: ExpressionText
    numbers: tuple[int, ...]

    @property
    def last_line_number(self) -> int:
        """The last line that sets it."""
        return self.numbers[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandedRecipe:
    """A recipe without statements; ``faults`` are what has no equivalent, by line; ``comments`` are whole lines."""

    lines: tuple[RecipeLine, ...]
    expressions: tuple[ExpressionText, ...]
    settings: tuple[ContextEntry, ...]
    raw: tuple[str, ...]
    comments: Mapping[int, str]
    above: Mapping[int, tuple[str, ...]]  # the comments directly above a setting
    remarks: Mapping[int, str]  # comments that follow text
    faults: tuple[tuple[int, str], ...]
