"""Run the matrix: options in, a plan, one process per config, a report out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from kiln.executor.conda_forge_env import CONTRACT
    from kiln.job.host_environment_and_python import HostMachine
    from kiln.job.job_descriptions import BuildOptions
    from kiln.run.feedstock_run import build_planned_configs, caller_variable_names, last_config_states, plan_run
    from kiln.run.options import RunOptions, parse_docker_run_arguments
    from kiln.run.plan import RunPlan, plan_as_text

__all__ = [
    "CONTRACT",
    "BuildOptions",
    "HostMachine",
    "RunOptions",
    "RunPlan",
    "build_planned_configs",
    "caller_variable_names",
    "last_config_states",
    "parse_docker_run_arguments",
    "plan_as_text",
    "plan_run",
]

__getattr__ = lazy_exports(
    __name__,
    {
        ".executor.conda_forge_env": "CONTRACT",
        ".job.host_environment_and_python": "HostMachine",
        ".job.job_descriptions": "BuildOptions",
        "feedstock_run": "build_planned_configs caller_variable_names last_config_states plan_run",
        "options": "RunOptions parse_docker_run_arguments",
        "plan": "RunPlan plan_as_text",
    },
)
