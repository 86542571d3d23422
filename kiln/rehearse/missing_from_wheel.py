"""The parts of outputs that upstream's wheel lacks, so that a rehearsal cannot make them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files

if TYPE_CHECKING:
    from collections.abc import Iterable

GAPS = Path(__file__).with_name("missing.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelGap:
    """A row of missing.csv: what an output lacks, and whether a rehearsal makes the output without it."""

    output: str
    lacks: str
    is_made: bool
    source: str

    @property
    def note(self) -> str:
        """The note for the user."""
        consequence = f"{self.output} is made without it" if self.is_made else f"{self.output} is not made"
        return f"upstream's wheel has no {self.lacks}: {consequence}"


@cache
def known_gaps() -> tuple[WheelGap, ...]:
    """Return the rows of missing.csv."""
    return tuple(
        WheelGap(output=row["output"], lacks=row["lacks"], is_made=row["made"] == "yes", source=row["source"])
        for row in files.csv_rows(GAPS)
    )


def output_gaps(names: Iterable[str]) -> tuple[WheelGap, ...]:
    """Return the gaps of outputs, by the outputs' names."""
    names = frozenset(names)
    return tuple(gap for gap in known_gaps() if gap.output in names)
