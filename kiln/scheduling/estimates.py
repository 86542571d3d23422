"""Estimates of the durations of builds: from earlier builds, or else from stated assumptions."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kiln.ledger import BuildDuration
    from kiln.model.job_estimate import JobEstimate

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
        return (
            1.0
            if 0 in {cores, reference}
            else self._compile_time_relative_to_one_core(cores) / self._compile_time_relative_to_one_core(reference)
        )

    def _compile_time_relative_to_one_core(self, cores: float) -> float:
        return 1.0 - self.parallel + self.parallel / cores


def estimate_jobs(
    jobs: Sequence[JobEstimate],
    history: Iterable[BuildDuration],
    *,
    cores: float,
    assumptions: CompileAssumptions,
) -> tuple[JobEstimate, ...]:
    """Return configs with their estimates on ``cores`` cores.

    The estimate is the duration of the config's last build, else the average of its group, else that of all builds,
    else the assumption; separately for cold and warm builds.
    """
    cold, warm = ({}, {})  # type: tuple[dict[str, float], dict[str, float]]
    for build in history:
        (cold if build.cold else warm)[build.config] = build.seconds * assumptions.slowdown(cores, build.cores)
    default = assumptions.compile * assumptions.slowdown(cores, assumptions.cores)
    groups = {job.config: job.group for job in jobs}

    def estimate_job(job: JobEstimate) -> JobEstimate:
        cold_seconds, source = expected_build_seconds(job.config, groups, cold)
        warm_seconds, warm_source = expected_build_seconds(job.config, groups, warm)
        if cold_seconds is None:
            cold_seconds, source = (default, DEFAULT)
            if warm_seconds is not None:
                cold_seconds, source = (max(default, warm_seconds), warm_source)
        warm_seconds = cold_seconds * assumptions.warm if warm_seconds is None else warm_seconds
        return dataclasses.replace(job, cold=cold_seconds, warm=min(cold_seconds, warm_seconds), source=source)

    return tuple(map(estimate_job, jobs))


def expected_build_seconds(
    config: str, groups: Mapping[str, str], durations: Mapping[str, float]
) -> tuple[float | None, str]:
    """Return a config's last duration, else the average of its group, else that of all, and which of them it is."""
    if config in durations:
        return durations[config], HISTORY
    group = [seconds for other, seconds in durations.items() if groups.get(other) == groups[config]]
    sample = group or list(durations.values())
    return (sum(sample) / len(sample), SIMILAR) if sample else (None, "")
