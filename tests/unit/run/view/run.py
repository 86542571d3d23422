"""Runs with configs in given states and fixed times, for tests of views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kiln.state.results import ConfigRun, ConfigState, MatrixReport

BEGAN = 1_790_000_000.0


def a_config(config: str, state: ConfigState, **more: Any) -> ConfigRun:
    """Return a config that, if started, started with the run and, if finished, took two minutes."""
    is_started = state not in {ConfigState.WAITING, ConfigState.CACHED}
    is_finished = is_started and state is not ConfigState.RUNNING
    times = {"started": BEGAN if is_started else None, "finished": BEGAN + 120 if is_finished else None}
    return ConfigRun(**{"config": config, "state": state, "group": "", **times, **more})


def a_run(*configs: ConfigRun, **more: Any) -> MatrixReport:
    """Return a run with these configs, two in parallel."""
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
    return MatrixReport(**{**fixed, "configs": configs, **more})


LOG = Path("/feedstock/build_artifacts/logs/a.log")
