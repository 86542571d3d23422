"""The build stage: plan purely which packages are made and how, then let the engine make one after the other."""

from kiln.build.engine import execute, prepare
from kiln.build.plan import (
    callers_variables,
    in_order,
    is_single,
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
    "plan_compile",
    "plan_outputs",
    "plan_rehearsal",
    "prepare",
    "test_sources",
]
