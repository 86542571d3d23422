"""The terms of a fleet run: its offers, replacements of lost workers, and the lifetime of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.cli.fleet_ansible_settings import playbook_variable_text
from kiln.cli.fleet_arguments import planned_worker_loss_limits
from kiln.cli.fleet_controller_type_and_charge import KEEP
from kiln.cli.fleet_fallbacks import offers_by_type
from kiln.cli.fleet_plan_inputs import priced_controller_type
from kiln.console.text import duration_seconds
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from kiln.fleet.plan import FleetPlan
    from kiln.fleet.run_terms import RunTerms


def worker_lifetime(options: argparse.Namespace, plan: FleetPlan) -> float:
    """Return the seconds after which workers end themselves: a day, or twice the plan if that is longer.

    Raises:
        UsageError: when the playbooks' variable ``kiln_lifetime`` is too short for a build.
    """
    from kiln.fleet.lost_controller_cost_and_sweep_script import LIFETIME

    text = playbook_variable_text("kiln_lifetime", options.vars)
    if not text:
        return max(LIFETIME, 2 * plan.selection.seconds)
    longest = max(job.cold for job in plan.estimates)
    if not text.isdecimal() or int(text) <= longest:
        why = f"the longest build takes {longest:.0f} s, and a worker ends itself at the end of its lifetime"
        raise UsageError(f"invalid kiln_lifetime {text!r}", why=why, hint="leave it out: it follows from the plan")
    return float(text)


def run_terms_of_plan(options: argparse.Namespace, plan: FleetPlan) -> RunTerms:
    """Return the terms of a run by a plan."""
    from kiln.fleet.assumptions import Assumptions
    from kiln.fleet.lost_worker_limits import joint_loss_limit
    from kiln.fleet.run_terms import RunTerms, greatest_loss

    way, (first, *others) = plan.selection, offers_by_type(options, plan).values()
    attempts, replacements = planned_worker_loss_limits(options, way)
    joint = joint_loss_limit(replacements, way.workers + (0 if way.pool is None else way.pool.workers))
    return RunTerms(
        offers=first,
        other_offers=tuple(others),
        attempts=attempts,
        replacements=replacements,
        joint_replacements=joint,
        losses=greatest_loss(
            plan,
            [offer for offers in (first, *others) for offer in offers],
            replacements,
            joint,
            Assumptions.read().startup,
        ),
        lifetime=worker_lifetime(options, plan),
        controller=priced_controller_type(options),
        keep=duration_seconds(options.keep or KEEP),
    )
