"""What rules say their findings with, and what several of them look up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import lines, tables
from kiln.compat.answer import Finding, Verdict

if TYPE_CHECKING:
    from kiln.compat.combination import Combination
    from kiln.compat.tables import Row

WORKS, COSTS, UNKNOWN, CANNOT = Verdict.WORKS, Verdict.COSTS, Verdict.UNKNOWN, Verdict.CANNOT


def told(rule: str, verdict: Verdict, reason: str, *rows: Row) -> Finding:
    """Return what rows say."""
    return Finding(rule=rule, verdict=verdict, reason=reason, rows=rows)


def silent(rule: str, reason: str) -> Finding:
    """Return that the tables say nothing."""
    return Finding(rule=rule, verdict=UNKNOWN, reason=reason)


def same_bazel(rule: str, who: str, wanted: str, given: str, row: Row | None) -> Finding:
    """Return what is to be said of a Bazel beside the one that a release is built with."""
    if row is None:
        return silent(rule, f"no table has {who}")
    if lines.agree(wanted, given):
        return told(rule, WORKS, f"{who} is built with Bazel {wanted}", row)
    if lines.numbers(wanted)[0] == lines.numbers(given)[0] > 0 and lines.at_least(given, wanted):
        return told(rule, COSTS, f"{who} is built with Bazel {wanted}; {given} is untested", row)
    return told(rule, UNKNOWN, f"{who} is built with Bazel {wanted}; whether {given} builds it nobody has told", row)


def with_cuda(asked: Combination) -> Combination:
    """The combination with the CUDA that its release is built or tested with, where none is given."""
    if asked.cuda is not None:
        return asked
    row = tables.serving(asked.serving) if asked.serving else tables.tensorflow(asked.tf) if asked.tf else None
    return asked if row is None else asked.with_versions(cuda=row["cuda"])
