"""The progress and the report of a compile by Bazel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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

    ``hits`` came from a cache, ``misses`` were run, ``remote`` of them by a remote executor; ``internal`` are Bazel's
    own, which need neither. ``seconds`` is the wall-clock time, ``work`` the sum over all actions, None without a
    profile of Bazel. ``critical`` is the duration of the critical path, the longest chain of actions that need each
    other, ``queued`` the part of it in which an action waited for a remote worker; None where Bazel reports none.
    """

    hits: int
    misses: int
    internal: int
    seconds: float
    work: float | None = None
    remote: int = 0
    critical: float | None = None
    queued: float | None = None

    def __str__(self) -> str:
        internal = f", {self.internal:,} internal" if self.internal else ""
        where = f" ({self.remote:,} remotely, {self.misses - self.remote:,} here)" if self.remote else ""
        text = (
            f"{self.hits + self.misses:,} actions: {self.hits:,} from the cache, {self.misses:,} run{where}{internal}"
        )
        if not self.remote or self.critical is None:
            return text
        queued = "" if self.queued is None else f", {self.queued:,.0f} s of it in the queue"
        return f"{text}; critical path {self.critical:,.0f} s{queued}"


def sum_of_reports(reports: Sequence[CompileReport]) -> CompileReport:
    """Return the report of a compile that called Bazel several times."""
    return CompileReport(
        hits=sum(report.hits for report in reports),
        misses=sum(report.misses for report in reports),
        internal=sum(report.internal for report in reports),
        seconds=sum(report.seconds for report in reports),
        work=_sum_of_known(report.work for report in reports),
        remote=sum(report.remote for report in reports),
        critical=_sum_of_known(report.critical for report in reports),
        queued=_sum_of_known(report.queued for report in reports),
    )


def _sum_of_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of the values that are known, None without any."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None
