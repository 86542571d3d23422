"""Faults of the keys of a recipe: names that do not exist, and those that an engine does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kiln.model.source_position import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFault:
    """A key of a recipe that an engine cannot honor, or that no engine knows when ``known`` is false."""

    key: str
    known: bool
    what: str
    at: Place
    why: str = ""
    hint: str = ""
