"""A run to be shown: cells in given states, times that do not move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kiln.model.run import CellRun, CellState, MatrixReport

BEGAN = 1_790_000_000.0


def a_cell(config: str, state: CellState, **more: Any) -> CellRun:
    """A cell; one that has begun began with the run, one that is over took two minutes."""
    began = state not in {CellState.WAITING, CellState.FOUND}
    over = began and state is not CellState.RUNNING
    times = {"started": BEGAN if began else None, "finished": BEGAN + 120 if over else None}
    return CellRun(**{"config": config, "state": state, "group": "", **times, **more})


def a_run(*cells: CellRun, **more: Any) -> MatrixReport:
    """A run with these cells, two at a time."""
    fixed = {
        "run": 7,
        "command": "kiln build --all",
        "started": BEGAN,
        "finished": None,
        "machine": "builder",
        "cores": 8,
        "jobs": 2,
        "engine": "rattler-build",
        "container": "docker",
    }
    return MatrixReport(**{**fixed, "cells": cells, **more})


LOG = Path("/feedstock/build_artifacts/logs/a.log")
