"""The results of the doctor: a verdict with its reasons, each with its rows; what several rules share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from kiln.compat import tables
from kiln.compat.version_ranges import is_at_least, version_numbers, versions_agree

if TYPE_CHECKING:
    from kiln.compat.combination import Combination
    from kiln.compat.tables import Row


class Verdict(str, Enum):
    """The verdicts from good to bad; the worst finding decides."""

    WORKS = "works"
    COSTS = "works with a cost"
    UNKNOWN = "unknown"
    CANNOT = "cannot work"

    def __init__(self, _: str) -> None:
        self.rank = len(type(self).__members__)  # 0 for the best


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The finding of one rule: ``rows`` are the facts that it rests on, none where the tables have none."""

    rule: str
    verdict: Verdict
    reason: str
    rows: tuple[Row, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        rows = [{"place": row.place, "row": dict(row.cells[:-1]), "source": row["source"]} for row in self.rows]
        return {"rule": self.rule, "verdict": self.verdict.value, "reason": self.reason, "rows": rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A similar combination with a better verdict: ``changes`` are the names of the parts that differ."""

    combination: Combination
    verdict: Verdict
    changes: tuple[str, ...]
    variants: tuple[str, ...] = ()

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


def worst_verdict(findings: tuple[Finding, ...]) -> Verdict:
    """Return the worst verdict of all findings; without any it is unknown."""
    return max((finding.verdict for finding in findings), key=lambda verdict: verdict.rank, default=Verdict.UNKNOWN)


WORKS, COSTS, UNKNOWN, CANNOT = Verdict.WORKS, Verdict.COSTS, Verdict.UNKNOWN, Verdict.CANNOT


def finding_with_rows(rule: str, verdict: Verdict, reason: str, *rows: Row) -> Finding:
    """Return a finding that rests on rows."""
    return Finding(rule=rule, verdict=verdict, reason=reason, rows=rows)


def unknown_finding(rule: str, reason: str) -> Finding:
    """Return the finding that the tables have no row."""
    return Finding(rule=rule, verdict=UNKNOWN, reason=reason)


def bazel_finding(rule: str, release: str, tested: str, bazel: str, row: Row | None) -> Finding:
    """Return the finding about a Bazel, compared with the one that a release is built with."""
    if row is None:
        return unknown_finding(rule, f"no table has {release}")
    reason = f"{release} is built with Bazel {tested}"
    if versions_agree(tested, bazel):
        return finding_with_rows(rule, WORKS, reason, row)
    if version_numbers(tested)[0] == version_numbers(bazel)[0] > 0 and is_at_least(bazel, tested):
        return finding_with_rows(rule, COSTS, f"{reason}; {bazel} is untested", row)
    return finding_with_rows(rule, UNKNOWN, f"{reason}; whether {bazel} builds it is not documented", row)


def release_row(combination: Combination) -> Row | None:
    """Return the row of a combination's release of Serving, else of TensorFlow."""
    if combination.serving:
        return tables.serving_row(combination.serving)
    return tables.tensorflow_row(combination.tf) if combination.tf else None


def with_release_cuda_unless_given(combination: Combination) -> Combination:
    """Return the combination with a CUDA: its own, or the one that its release is built or tested with."""
    if combination.cuda is not None:
        return combination
    row = release_row(combination)
    return combination if row is None else combination.with_versions(cuda=row["cuda"])
