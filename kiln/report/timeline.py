"""The timeline of a run: its configs in lanes along a time axis, with positions in percent of its length."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from kiln.model.run import ConfigRun, ConfigState, MatrixReport
from kiln.report import totals

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
    end = totals.end_or_last_recorded_time(report, now)
    ends = [_expected_end(config, report) for config in report.configs if _is_running(config) and config.started]
    length = max(1.0, max([end, *ends]) - report.started)
    configs = _assign_lanes(report, end)
    lanes = tuple(tuple(_config_bar(config, report, end, length) for config in lane) for lane in configs)
    workers = tuple(lane[0].worker for lane in configs)
    return TimelineChart(lanes=lanes, workers=workers if any(workers) else (), ticks=_axis_ticks(length))


def step_bars(config: ConfigRun, seconds: float | None) -> tuple[tuple[float, float], ...]:
    """Return the start and the width of each step's bar: steps run one after another, in ``seconds`` together."""
    ends = [0.0, *accumulate(step.seconds for step in config.steps)]
    length = max(seconds or 0.0, ends[-1]) or 1.0
    starts = zip(ends, config.steps, strict=False)
    return tuple((round(100 * start / length, 3), round(100 * step.seconds / length, 3)) for start, step in starts)


def _assign_lanes(report: MatrixReport, end: float) -> list[list[ConfigRun]]:
    """Put each config into the first lane of its worker that is free when it starts."""
    lanes: list[list[ConfigRun]] = []
    for config in sorted(report.configs, key=lambda config: config.started or 0):
        if config.started is None:
            continue
        candidates = [lane for lane in lanes if lane[0].worker == config.worker]
        free = next((lane for lane in candidates if (lane[-1].finished or end) <= config.started), None)
        if free is None:
            lanes.append([config])
        else:
            free.append(config)
    return sorted(lanes, key=lambda lane: lane[0].worker)


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


def _axis_ticks(length: float) -> tuple[AxisTick, ...]:
    step = next((step for step in _STEPS if length / step <= _TICKS), _STEPS[-1])
    marks = range(0, int(length) + 1, step)
    return tuple(AxisTick(at=round(100 * mark / length, 3), label=_tick_label(mark)) for mark in marks)


def _tick_label(seconds: int) -> str:
    """Return a round time in its largest units: ``30 s``, ``5 min``, ``1 h 30``, ``2 d``."""
    for unit, name, below, digits in ((86400, "d", 3600, ""), (3600, "h", 60, "02"), (60, "min", 1, "02")):
        if seconds >= unit:
            whole, rest = divmod(seconds, unit)
            return f"{whole} {name}" + (f" {rest // below:{digits}}" if rest else "")
    return f"{seconds} s" if seconds else "0"
