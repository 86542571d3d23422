"""The expected times of a run's configs as text, from the last forecast of a run on workers."""

from __future__ import annotations

import time

from kiln.model.run import OPEN, ConfigRun, ConfigState, RunCost

_WEEK = 6 * 86400.0  # seconds in which the name of a day is unambiguous


def time_of_day_text(moment: float, now: float, *, utc: bool = False) -> str:
    """Return a time of day, with its day unless that is today: ``14:05``, ``Tue 14:05``, ``30 Nov 14:05``."""
    parts = time.gmtime if utc else time.localtime
    at, today = parts(moment), parts(now)
    if at[:3] == today[:3]:
        return time.strftime("%H:%M", at)
    return time.strftime("%a %H:%M" if abs(moment - now) < _WEEK else "%d %b %H:%M", at)


def expected_period_text(start: float | None, end: float | None, now: float, *, utc: bool = False) -> str:
    """Return a period that is expected: ``14:05 to 17:10``; without a start ``until 17:10``, without an end nothing."""
    if end is None:
        return ""
    if start is None:
        return f"until {time_of_day_text(end, now, utc=utc)}"
    # The day of the end is left out if it is that of the start.
    parts = time.gmtime if utc else time.localtime
    is_same_day = parts(start)[:3] == parts(end)[:3]
    until = time.strftime("%H:%M", parts(end)) if is_same_day else time_of_day_text(end, now, utc=utc)
    return f"{time_of_day_text(start, now, utc=utc)} to {until}"


def expected_config_period_text(cost: RunCost | None, config: ConfigRun, now: float, *, utc: bool = False) -> str:
    """Return when a waiting config is expected to start and to end, or a running one to end; empty where unknown."""
    if cost is None or config.state not in OPEN:
        return ""
    start = cost.config_starts.get(config.config) if config.state is ConfigState.WAITING else None
    return expected_period_text(start, cost.config_ends.get(config.config), now, utc=utc)


def expected_starts_text(cost: RunCost, now: float) -> str:
    """Return when the waiting configs are expected to start: ``12 wait, to start from 14:05 to Tue 16:30``."""
    if not cost.config_starts:
        return ""
    moments = cost.config_starts.values()
    return f"{len(moments)} wait, to start from {expected_period_text(min(moments), max(moments), now)}"
