"""Runs as JSON values: all commands give costs and times in one shape, of docs/reference/cost-json.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.model.run import ConfigState, MatrixReport, RunCost
from kiln.serialization import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping


def report_as_json(report: MatrixReport) -> dict[str, Any]:
    """Return the report of a run."""
    running = {
        config.config: config.started
        for config in report.configs
        if config.state is ConfigState.RUNNING and config.started is not None
    }
    return {**to_json(report), "cost": cost_as_json(report.cost, start=report.started, running=running)}


def cost_as_json(cost: RunCost | None, *, start: float, running: Mapping[str, float]) -> dict[str, Any] | None:
    """Return the cost of a run on workers and its expected times; None for a run that has neither.

    ``start`` is that of the run, ``running`` those of the configs that are being built, in seconds since the epoch.
    """
    if cost is None:
        return None
    starts = {**cost.config_starts, **running}
    return {
        "currency": cost.currency or None,
        "spent": cost.spent if cost.currency else None,
        "expected": cost.expected if cost.currency else None,
        "controller": to_json(cost.controller),
        "start": start,
        "end": cost.end or None,
        "configs": {config: {"start": starts.get(config), "end": end} for config, end in cost.config_ends.items()},
    }
