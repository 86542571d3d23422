"""The constructors of findings, and lookups that several rules share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import tables, version_ranges
from kiln.compat.results import Finding, Verdict

if TYPE_CHECKING:
    from kiln.compat.combination import Combination
    from kiln.compat.tables import Row

WORKS, COSTS, UNKNOWN, CANNOT = Verdict.WORKS, Verdict.COSTS, Verdict.UNKNOWN, Verdict.CANNOT


def finding_of(rule: str, verdict: Verdict, reason: str, *rows: Row) -> Finding:
    """Return a finding that rests on rows."""
    return Finding(rule=rule, verdict=verdict, reason=reason, rows=rows)


def unknown(rule: str, reason: str) -> Finding:
    """Return the finding that the tables have no row."""
    return Finding(rule=rule, verdict=UNKNOWN, reason=reason)


def bazel_finding(rule: str, release: str, tested: str, bazel: str, row: Row | None) -> Finding:
    """Return the finding about a Bazel, compared with the one that a release is built with."""
    if row is None:
        return unknown(rule, f"no table has {release}")
    if version_ranges.agree(tested, bazel):
        return finding_of(rule, WORKS, f"{release} is built with Bazel {tested}", row)
    if version_ranges.numbers(tested)[0] == version_ranges.numbers(bazel)[0] > 0 and version_ranges.at_least(
        bazel, tested
    ):
        return finding_of(rule, COSTS, f"{release} is built with Bazel {tested}; {bazel} is untested", row)
    return finding_of(
        rule, UNKNOWN, f"{release} is built with Bazel {tested}; whether {bazel} builds it is not documented", row
    )


def release_row(combination: Combination) -> Row | None:
    """Return the row of a combination's release of Serving, else of TensorFlow."""
    if combination.serving:
        return tables.serving(combination.serving)
    return tables.tensorflow(combination.tf) if combination.tf else None


def with_release_cuda(combination: Combination) -> Combination:
    """Return the combination with a CUDA: its own, or the one that its release is built or tested with."""
    if combination.cuda is not None:
        return combination
    row = release_row(combination)
    return combination if row is None else combination.with_versions(cuda=row["cuda"])
