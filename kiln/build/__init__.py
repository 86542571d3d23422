"""The build stage: plan purely which packages to make and how, then have the engine make them one by one."""

from kiln.build.engine_run import execute, prepare
from kiln.build.plan import in_order, only_tested, plan_compile, plan_outputs, plan_rehearsal, test_sources
from kiln.build.script_variables import callers_variables
from kiln.build.staging_run_exports import run_exports_of

__all__ = [
    "callers_variables",
    "execute",
    "in_order",
    "only_tested",
    "plan_compile",
    "plan_outputs",
    "plan_rehearsal",
    "prepare",
    "run_exports_of",
    "test_sources",
]
