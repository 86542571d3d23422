"""The results of the doctor: a verdict with its reasons, each with the rows that it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kiln.compat.combination import Combination
    from kiln.compat.tables import Row


class Verdict(str, Enum):
    """The verdicts from good to bad; the worst finding decides."""

    WORKS = "works"
    COSTS = "works with a cost"
    UNKNOWN = "unknown"
    CANNOT = "cannot work"

    @property
    def rank(self) -> int:
        """0 for the best."""
        return list(Verdict).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The finding of one rule: ``rows`` are the facts that it rests on, none where the tables have none."""

    rule: str
    verdict: Verdict
    reason: str
    rows: tuple[Row, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        rows = [{"place": row.place, "row": dict(row.cells[:-1]), "source": row.source} for row in self.rows]
        return {"rule": self.rule, "verdict": self.verdict.value, "reason": self.reason, "rows": rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A similar combination with a better verdict: ``changes`` are the names of the parts that differ."""

    combination: Combination
    verdict: Verdict
    changes: tuple[str, ...]
    variants: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        """Return the suggestion as JSON values."""
        return {
            "combination": self.combination.as_data(),
            "verdict": self.verdict.value,
            "changes": list(self.changes),
            "variants": list(self.variants),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorResult:
    """The verdict on a combination; ``variants`` are lines for the recipe's conda_build_config.yaml."""

    combination: Combination
    verdict: Verdict
    findings: tuple[Finding, ...]
    nearest: tuple[Suggestion, ...] = ()
    variants: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "verdict": self.verdict.value,
            "combination": self.combination.as_data(),
            "findings": [finding.as_data() for finding in self.findings],
            "nearest": [suggestion.as_data() for suggestion in self.nearest],
            "variants": list(self.variants),
        }


def verdict(findings: tuple[Finding, ...]) -> Verdict:
    """Return the worst verdict of all findings; without any it is unknown."""
    return max((finding.verdict for finding in findings), key=lambda verdict: verdict.rank, default=Verdict.UNKNOWN)
