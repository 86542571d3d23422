"""A run compared with earlier runs of its kind: what fails newly, is fixed, or has become slower."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.model.run import BAD, GOOD, ConfigRun, ConfigState, MatrixReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SLOWER, SECONDS = 1.2, 10.0  # a build is slower from this factor on, and from these seconds
DECIDED = GOOD | BAD


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierConfigRecord:
    """The record of a config in an earlier run; ``machine`` is what its time depends on: machine, cores, jobs."""

    run: int
    machine: tuple[str, int, int]
    config: ConfigRun


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A difference of a config from ``before``: ``new failure``, ``fixed``, ``still fails``, ``slower``, ``faster``."""

    config: ConfigRun
    kind: str
    before: EarlierConfigRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """A run and earlier ones: ``runs`` are those compared with, the latest first; ``built_in`` is for cached configs.

    ``built_in`` has the run that built the packages of a cached config, where the ledger still has it.
    """

    runs: tuple[int, ...] = ()
    changes: tuple[ConfigChange, ...] = ()
    built_in: dict[str, EarlierConfigRecord]

    @property
    def summary(self) -> str:
        """The number of changes of each kind: ``1 new failure, 2 fixed``; empty without changes."""
        counts = Counter(change.kind for change in self.changes)  # changes are in the order of KINDS
        return ", ".join(f"{count} {_pluralized_change_kind(kind, count)}" for kind, count in counts.items())


KINDS = ("new failure", "fixed", "still fails", "slower", "faster")


def compare_with_earlier_runs(report: MatrixReport, earlier: Iterable[MatrixReport]) -> RunComparison:
    """Compare each config with its result in the last run that has one; ``earlier`` are runs, the latest first.

    Builds and rehearsals are not compared. The time of a build is compared with that of the last complete one on the
    same machine, with as many jobs; a cold build's with a cold one's.
    """
    runs = [run for run in earlier if run.run < report.run and run.rehearsal == report.rehearsal]
    records: dict[str, list[EarlierConfigRecord]] = {}
    for run in runs:
        for config in run.configs:
            if config.state in DECIDED:
                record = EarlierConfigRecord(run=run.run, machine=_machine_cores_and_jobs(run), config=config)
                records.setdefault(config.config, []).append(record)
    compared = {entries[0].run for config in report.configs if (entries := records.get(config.config))}
    changes = (
        _config_change(config, records.get(config.config, ()), _machine_cores_and_jobs(report))
        for config in report.configs
    )
    cached = (config for config in report.configs if config.state is ConfigState.CACHED)
    origins = ((config.config, _original_build(config, records.get(config.config, ()))) for config in cached)
    return RunComparison(
        runs=tuple(sorted(compared, reverse=True)),
        changes=tuple(sorted(filter(None, changes), key=lambda change: KINDS.index(change.kind))),
        built_in={name: origin for name, origin in origins if origin is not None},
    )


def _config_change(
    config: ConfigRun, records: Sequence[EarlierConfigRecord], machine: tuple[str, int, int]
) -> ConfigChange | None:
    if not records or config.state not in DECIDED:
        return None
    last = records[0]
    if config.state in BAD or last.config.state in BAD:
        kind = "fixed" if config.state in GOOD else "still fails" if last.config.state in BAD else "new failure"
        return ConfigChange(config=config, kind=kind, before=last)
    builds = (record for record in records if record.machine == machine and record.config.cold == config.cold)
    before = next((record for record in builds if _full_build_seconds(record.config) is not None), None)
    seconds = _full_build_seconds(config)
    if before is None or seconds is None:
        return None
    seconds_before = _full_build_seconds(before.config) or 0.0
    low, high = sorted((seconds, seconds_before))
    if high - low < SECONDS or high < SLOWER * low:
        return None
    return ConfigChange(config=config, kind="slower" if seconds > seconds_before else "faster", before=before)


def _machine_cores_and_jobs(run: MatrixReport) -> tuple[str, int, int]:
    return run.machine, run.cores, run.jobs


def _full_build_seconds(config: ConfigRun) -> float | None:
    """Return the duration of a build that reused no step; None otherwise."""
    if config.state is not ConfigState.DONE or any(step.reused for step in config.steps):
        return None
    return None if config.started is None or config.finished is None else config.finished - config.started


def _original_build(config: ConfigRun, records: Sequence[EarlierConfigRecord]) -> EarlierConfigRecord | None:
    """Return the build that made a cached config's packages: with the same hashes."""
    hashes = _package_hashes(config)
    builds = (record for record in records if record.config.state is ConfigState.DONE)
    return next((record for record in builds if hashes and _package_hashes(record.config) == hashes), None)


def _package_hashes(config: ConfigRun) -> list[str]:
    return sorted(package.artifact.sha256 for package in config.packages)


def _pluralized_change_kind(kind: str, count: int) -> str:
    if kind == "still fails":
        return kind if count == 1 else "still fail"
    return "new failures" if kind == "new failure" and count != 1 else kind
