"""The build stage: plan purely which packages to make and how, then have the engine make them one by one."""

from typing import TYPE_CHECKING

from kiln.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from kiln.build.engine_run import build_package, prepare_script_run
    from kiln.build.plan import (
        outputs_in_build_order,
        plan_compile,
        plan_outputs,
        plan_rehearsal,
        test_only_files,
        test_sources_folder,
    )
    from kiln.build.script_variables import config_caller_variable_names
    from kiln.build.staging_and_build_run_exports import run_exports_of_package

__all__ = [
    "build_package",
    "config_caller_variable_names",
    "outputs_in_build_order",
    "plan_compile",
    "plan_outputs",
    "plan_rehearsal",
    "prepare_script_run",
    "run_exports_of_package",
    "test_only_files",
    "test_sources_folder",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "engine_run": "build_package prepare_script_run",
        "plan": "outputs_in_build_order plan_compile plan_outputs plan_rehearsal test_only_files test_sources_folder",
        "script_variables": "config_caller_variable_names",
        "staging_and_build_run_exports": "run_exports_of_package",
    },
)
