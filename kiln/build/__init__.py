"""The build stage: plan purely which packages to make and how, then have the engine make them one by one."""

from kiln.build.engine import execute, prepare
from kiln.build.plan import (
    callers_variables,
    in_order,
    is_single,
    only_tested,
    plan_compile,
    plan_outputs,
    plan_rehearsal,
    test_sources,
)

__all__ = [
    "callers_variables",
    "execute",
    "in_order",
    "is_single",
    "only_tested",
    "plan_compile",
    "plan_outputs",
    "plan_rehearsal",
    "prepare",
    "test_sources",
]
