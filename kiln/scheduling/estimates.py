"""Estimates of the durations of builds: from earlier builds, or else from stated assumptions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.model.fleet import JobEstimate, JobSize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kiln.ledger import BuildDuration

HISTORY, SIMILAR, DEFAULT = "history", "similar configs", "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileAssumptions:
    """The assumptions about builds without a history.

    ``compile`` are the seconds of a cold build on ``cores`` cores, ``warm`` the part of that time that a warm build
    takes, ``parallel`` the part of a compile that scales with the cores.
    """

    compile: float
    cores: float
    warm: float
    parallel: float

    def slowdown(self, cores: float, reference: float) -> float:
        """Return how many times as long a compile takes on ``cores`` as on ``reference`` cores (Amdahl's law).

        0 stands for an unknown number of cores, and leaves the duration as it is.
        """
        return 1.0 if 0 in {cores, reference} else self._time(cores) / self._time(reference)

    def _time(self, cores: float) -> float:
        return 1.0 - self.parallel + self.parallel / cores


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedJob:
    """A config that is to be built: ``group`` shares its compile, ``key`` is a hash over its inputs.

    ``size`` is what it needs of a worker.
    """

    config: str
    group: str
    key: str = ""
    size: JobSize = field(default_factory=JobSize)


def estimate_jobs(
    requests: Sequence[RequestedJob],
    history: Iterable[BuildDuration],
    *,
    cores: float,
    assumptions: CompileAssumptions,
) -> tuple[JobEstimate, ...]:
    """Return the estimates of configs on ``cores`` cores.

    The estimate is the duration of the config's last build, else the average of its group, else that of all builds,
    else the assumption; separately for cold and warm builds.
    """
    cold, warm = ({}, {})  # type: tuple[dict[str, float], dict[str, float]]
    for build in history:
        (cold if build.cold else warm)[build.config] = build.seconds * assumptions.slowdown(cores, build.cores)
    default = assumptions.compile * assumptions.slowdown(cores, assumptions.cores)
    groups = {request.config: request.group for request in requests}
    return tuple(_estimate(request, cold, warm, groups, default, assumptions.warm) for request in requests)


def _estimate(
    request: RequestedJob,
    cold: Mapping[str, float],
    warm: Mapping[str, float],
    groups: Mapping[str, str],
    default: float,
    warm_part: float,
) -> JobEstimate:
    cold_seconds, source = expected_seconds(request.config, groups, cold)
    warm_seconds, warm_source = expected_seconds(request.config, groups, warm)
    if cold_seconds is None:
        cold_seconds, source = (default, DEFAULT)
        if warm_seconds is not None:
            cold_seconds, source = (max(default, warm_seconds), warm_source)
    return JobEstimate(
        config=request.config,
        group=request.group,
        cold=cold_seconds,
        warm=min(cold_seconds, cold_seconds * warm_part if warm_seconds is None else warm_seconds),
        source=source,
        key=request.key,
        size=request.size,
    )


def expected_seconds(
    config: str, groups: Mapping[str, str], durations: Mapping[str, float]
) -> tuple[float | None, str]:
    """Return a config's last duration, else the average of its group, else that of all, and which of them it is."""
    if config in durations:
        return durations[config], HISTORY
    group = [seconds for other, seconds in durations.items() if groups.get(other) == groups[config]]
    sample = group or list(durations.values())
    return (sum(sample) / len(sample), SIMILAR) if sample else (None, "")
