"""The progress and the report of a compile by Bazel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a compile: ``done`` of ``total`` actions; the total is None at first, and then grows for a while.

    ``current`` is a running action, ``left`` an estimate in seconds. ``stalled`` says since when nothing has
    happened and which processes run; it is empty while there is progress.
    """

    done: int
    total: int | None = None
    current: str = ""
    left: float | None = None
    stalled: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileReport:
    """The origin of a compile's actions, as counted by Bazel.

    ``hits`` came from a cache, ``misses`` were run, ``internal`` are Bazel's own, which need neither. ``seconds`` is
    the wall-clock time, ``work`` the sum over all actions, None without a profile of Bazel.
    """

    hits: int
    misses: int
    internal: int
    seconds: float
    work: float | None = None

    def __str__(self) -> str:
        internal = f", {self.internal:,} internal" if self.internal else ""
        return f"{self.hits + self.misses:,} actions: {self.hits:,} from the cache, {self.misses:,} run{internal}"


def sum_of(reports: Sequence[CompileReport]) -> CompileReport:
    """Return the report of a compile that called Bazel several times."""
    works = [report.work for report in reports if report.work is not None]
    return CompileReport(
        hits=sum(report.hits for report in reports),
        misses=sum(report.misses for report in reports),
        internal=sum(report.internal for report in reports),
        seconds=sum(report.seconds for report in reports),
        work=sum(works) if works else None,
    )
