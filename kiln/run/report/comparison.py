"""A run's figures and timeline, and its comparison with earlier runs."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from kiln.state.results import BAD, GOOD, OPEN, ConfigRun, ConfigState, MatrixReport, PackageReport, TestVerdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


TEST_STEP = "test "  # the title of a test's step begins with it


@dataclass(frozen=True, slots=True, kw_only=True)
class TestTotals:
    """The number of packages whose tests ran and passed; ``tests`` are single tests, 0 where no number is known."""

    passed: int
    run: int
    tests: int = 0

    def __str__(self) -> str:
        if self.passed < self.run or not self.tests:
            return f"{self.passed} of {self.run} pass" if self.run else ""
        return f"{self.tests} pass"


def is_running(report: MatrixReport) -> bool:
    """Return whether a run is in progress; a killed run is not finished, but has no open configs."""
    return report.finished is None and any(config.state in OPEN for config in report.configs)


def run_verdict(report: MatrixReport) -> str:
    """Return the verdict of a run: ``running``, ``failed``, ``interrupted`` or ``succeeded``."""
    states = {config.state for config in report.configs}
    if is_running(report):
        return "running"
    if states & BAD:
        return "failed"
    return "succeeded" if states <= GOOD else "interrupted"


def verdict_with_counts(report: MatrixReport) -> str:
    """Return the verdict of a run with its counts: ``2 of 9 failed``, ``9 of 9 built (7 cached)``."""
    states = [config.state for config in report.configs]
    total, bad = len(states), sum(state in BAD for state in states)
    cached = states.count(ConfigState.CACHED)
    counts = f"{sum(state in GOOD for state in states)} of {total} {'rehearsed' if report.rehearsal else 'built'}"
    counts += f" ({cached} cached)" if cached else ""
    failed = f"{bad} of {total} failed"
    match run_verdict(report):
        case "running":
            return f"running: {counts}" + (f", {failed}" if bad else "")
        case "failed":
            return failed
        case "succeeded":
            return counts if states else "nothing to build"
        case _:
            return f"interrupted: {counts}"


def end_or_last_recorded_time(report: MatrixReport, now: float) -> float:
    """Return the end of a run in seconds since the epoch; of a killed run, the last recorded time."""
    if report.finished is not None:
        return report.finished
    if is_running(report):
        return now
    moments = [report.started]
    for config in report.configs:
        if config.started is not None:
            moments.append(config.started + sum(step.seconds for step in config.steps))
            if config.finished is None and config.log is not None:
                with contextlib.suppress(OSError):
                    moments.append(config.log.stat().st_mtime)  # a killed config wrote to its log until then
        if config.finished is not None:
            moments.append(config.finished)
    return max(moments)


def elapsed_seconds(config: ConfigRun, end: float) -> float | None:
    """Return the seconds that a config took, up to ``end`` if it is not finished."""
    return None if config.started is None else max(0.0, (config.finished or end) - config.started)


def compile_cache_hits_text(config: ConfigRun) -> str:
    """Return the cache hits of a compile, of all cacheable actions; an empty text without a compile."""
    compiles = [step.compile for step in config.steps if step.compile]
    hits, lookups = sum(step.hits for step in compiles), sum(step.hits + step.misses for step in compiles)
    return f"{hits:,} of {lookups:,}" if compiles else ""


def total_package_size(packages: Iterable[PackageReport]) -> int:
    """Return the total size of packages in bytes."""
    return sum(package.artifact.size for package in packages)


def distinct_packages(configs: Iterable[ConfigRun]) -> list[PackageReport]:
    """Return each package of configs once, by its file: as the config has it that made it here, where one did."""
    found: dict[tuple[str, str], PackageReport] = {}
    for package in (package for config in configs for package in config.packages):
        known = found.setdefault((package.artifact.subdir, package.artifact.path.name), package)
        if known.reused and not package.reused:
            found[package.artifact.subdir, package.artifact.path.name] = package
    return list(found.values())


def package_test_totals(packages: Collection[PackageReport]) -> TestTotals:
    """Return the totals of the tests of packages."""
    verdicts = [package.tests.verdict for package in packages]
    results = [verdict for verdict in verdicts if verdict not in {TestVerdict.NONE, TestVerdict.SKIPPED}]
    tests = sum(package.tests.commands for package in packages)
    return TestTotals(passed=results.count(TestVerdict.PASSED), run=len(results), tests=tests)


def config_test_totals(config: ConfigRun) -> TestTotals:
    """Return the totals of the tests of a config's packages; a config that failed has only the steps of its tests."""
    if config.packages:
        return package_test_totals(config.packages)
    steps = [step for step in config.steps if step.title.startswith(TEST_STEP)] if config.state in BAD else []
    if not any(step.failed for step in steps):
        return TestTotals(passed=0, run=0)  # it failed before its tests were over: none of them has a result
    return TestTotals(passed=sum(not step.failed for step in steps), run=len(steps))


_KINDS = (
    *(("fetch", "download"), ("verify", "download"), ("take", "download"), ("build ", "script")),
    *(("compile", "script"), ("package", "pack"), ("index", "pack"), ("wheel", "pack"), (TEST_STEP, "test")),
)  # of steps without recorded phases, by the begin of their titles
PHASES = ("wait", "download", "solve", "install", "script", "pack", "test", "other")


def time_by_phase(configs: Iterable[ConfigRun], end: float) -> dict[str, float]:
    """Return the seconds that configs spent on each of ``PHASES``, those with any; ``wait`` is outside of all steps."""
    seconds = dict.fromkeys(PHASES, 0.0)
    for config in configs:
        installs = {package.tests.package: package.tests.install_seconds for package in config.packages}
        steps = [step for step in config.steps if not step.reused]
        for step in steps:
            rest = step.seconds
            for phase in step.phases:
                seconds[phase.name if phase.name in seconds else "other"] += phase.seconds
                rest -= phase.seconds
            kind = next((kind for begin, kind in _KINDS if step.title.startswith(begin)), "other")
            if kind == "test":
                install = min(rest, installs.get(step.title.removeprefix(TEST_STEP), 0.0))
                seconds["install"] += install
                rest -= install
            seconds["pack" if step.phases else kind] += max(0.0, rest)
        whole = elapsed_seconds(config, end) or 0.0
        seconds["wait"] += max(0.0, whole - sum(step.seconds for step in steps))
    return {name: value for name, value in seconds.items() if value >= _LEAST}


_LEAST = 0.05  # seconds that are shown
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
_TICKS = 10  # approximate maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigBar:
    """A config's bar: ``ghost`` is its expected remaining time, ``open`` is True if its end is unknown."""

    config: ConfigRun
    start: float
    width: float
    ghost: float
    open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTick:
    """A mark of the axis with the time since the start of the run."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineChart:
    """Lanes of bars, one for each parallel job, and the axis below.

    ``workers`` are the lanes' workers if configs were built by a fleet.
    """

    lanes: tuple[tuple[ConfigBar, ...], ...]
    workers: tuple[str, ...]
    ticks: tuple[AxisTick, ...]


def lay_out_timeline(report: MatrixReport, now: float) -> TimelineChart:
    """Lay out a run; ``now`` (seconds since the epoch) is the end of a run in progress."""
    end = end_or_last_recorded_time(report, now)
    ends = [_expected_end(config, report) for config in report.configs if _is_running(config) and config.started]
    length = max(1.0, max([end, *ends]) - report.started)
    configs: list[list[ConfigRun]] = []
    for config in sorted(report.configs, key=lambda config: config.started or 0):
        if config.started is not None:  # it goes into the first lane of its worker that is free when it starts
            candidates = [lane for lane in configs if lane[0].worker == config.worker]
            free = next((lane for lane in candidates if (lane[-1].finished or end) <= config.started), None)
            if free is None:
                configs.append([config])
            else:
                free.append(config)
    configs.sort(key=lambda lane: lane[0].worker)
    lanes = tuple(tuple(_config_bar(config, report, end, length) for config in lane) for lane in configs)
    workers = tuple(lane[0].worker for lane in configs)
    step = next((step for step in _STEPS if length / step <= _TICKS), _STEPS[-1])
    marks = range(0, int(length) + 1, step)
    ticks = tuple(AxisTick(at=round(100 * mark / length, 3), label=_tick_label(mark)) for mark in marks)
    return TimelineChart(lanes=lanes, workers=workers if any(workers) else (), ticks=ticks)


def step_bars(config: ConfigRun, seconds: float | None) -> tuple[tuple[float, float], ...]:
    """Return the start and the width of each step's bar; of an older run, where steps ran one after another."""
    starts = [0.0, *accumulate(step.seconds for step in config.steps)][:-1]
    if config.steps and all(step.began for step in config.steps):
        first = min(step.began for step in config.steps)
        starts = [step.began - first for step in config.steps]
    bars = [(start, step.seconds) for start, step in zip(starts, config.steps, strict=True)]
    length = max([seconds or 0.0, *map(sum, bars)]) or 1.0
    return tuple((round(100 * start / length, 3), round(100 * width / length, 3)) for start, width in bars)


def _expected_end(config: ConfigRun, report: MatrixReport) -> float:
    """Return the expected end of a running config: of a run on workers by its forecast."""
    ends = {} if report.cost is None else report.cost.config_ends
    return ends.get(config.config, (config.started or report.started) + (config.estimate or 0))


def _config_bar(config: ConfigRun, report: MatrixReport, end: float, length: float) -> ConfigBar:
    start = (config.started or report.started) - report.started
    until = max(start, (config.finished or end) - report.started)
    ghost = _expected_end(config, report) - report.started - until if _is_running(config) else 0.0
    return ConfigBar(
        config=config,
        start=round(100 * start / length, 3),
        width=round(100 * (until - start) / length, 3),
        ghost=round(100 * max(0.0, ghost) / length, 3),
        open=config.finished is None,
    )


def _is_running(config: ConfigRun) -> bool:
    return config.state is ConfigState.RUNNING


def _tick_label(seconds: int) -> str:
    """Return a round time in its largest units: ``30 s``, ``5 min``, ``1 h 30``, ``2 d``."""
    for unit, name, below, digits in ((86400, "d", 3600, ""), (3600, "h", 60, "02"), (60, "min", 1, "02")):
        if seconds >= unit:
            whole, rest = divmod(seconds, unit)
            return f"{whole} {name}" + (f" {rest // below:{digits}}" if rest else "")
    return f"{seconds} s" if seconds else "0"


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
        plurals = {"new failure": "new failures", "still fails": "still fail"}
        return ", ".join(f"{count} {kind if count == 1 else plurals.get(kind, kind)}" for kind, count in counts.items())


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
    built_in = {}
    for config in report.configs:  # a cached config was built where its packages were, by their hashes
        hashes = _package_hashes(config) if config.state is ConfigState.CACHED else []
        builds = [record for record in records.get(config.config, ()) if record.config.state is ConfigState.DONE]
        if origin := next((record for record in builds if hashes and _package_hashes(record.config) == hashes), None):
            built_in[config.config] = origin
    return RunComparison(
        runs=tuple(sorted(compared, reverse=True)),
        changes=tuple(sorted(filter(None, changes), key=lambda change: KINDS.index(change.kind))),
        built_in=built_in,
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


def _package_hashes(config: ConfigRun) -> list[str]:
    return sorted(package.artifact.sha256 for package in config.packages)
