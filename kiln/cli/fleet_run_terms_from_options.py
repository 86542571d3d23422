"""The terms of a fleet run: the offers that it may take, in order, replacements of workers, and their lifetime."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kiln.cli.fleet_arguments import planned_worker_loss_limits
from kiln.cli.fleet_controller_type_and_charge import KEEP
from kiln.cli.fleet_planning import priced_controller_type, priced_machine_types
from kiln.cli.fleet_prices import price_region
from kiln.cli.fleet_run_folder_and_variables import playbook_variable_text
from kiln.console.text import duration_seconds
from kiln.errors import UsageError
from kiln.fleet.worker_leases_and_sweep_timer import LIFETIME

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from kiln.fleet.offer_and_replacement_terms import RunTerms
    from kiln.fleet.plan import FleetPlan
    from kiln.model.fleet_run import MachineType, Offer
    from kiln.model.job_estimate import JobEstimate

CLOUDS = ("aws", "openstack")  # whose capacity changes, and which have zones
# Options that have an effect for some providers only. The simulated machines of "local" can be refused, too.
OPTIONS_OF = {
    "zone": CLOUDS,
    "fallback": CLOUDS,
    "additional": CLOUDS,
    "capacity_timeout": (*CLOUDS, "local"),
    "spot": ("aws",),
}


def check_options(options: argparse.Namespace) -> None:
    """Refuse options without effect for a provider, and a type of tests that are not planned.

    Raises:
        UsageError: with the option.
    """
    if getattr(options, "pool_type", None) and not options.pool:
        raise UsageError("--pool-type requires --pool")
    if getattr(options, "pool", None) and options.cache:
        raise UsageError("--cache cannot be used with --pool", hint="the pool's server has a cache for all builds")
    for name, providers in OPTIONS_OF.items():
        if getattr(options, name, None) and options.provider not in providers:
            option, hint = name.replace("_", "-"), f"runs on {' and '.join(providers)} take it"
            raise UsageError(f"--{option} is not an option of --provider {options.provider}", hint=hint)
    if getattr(options, "gpu_type", None) and not options.gpu_tests:
        raise UsageError("--gpu-type requires --gpu-tests")
    for zone in comma_separated_words(options, "zone"):
        _require_zone_in_region(options, zone)


def comma_separated_words(options: argparse.Namespace, name: str) -> list[str]:
    """Return the words of an option that takes several, separated by commas, or is repeated; in their order."""
    values = getattr(options, name, None) or ()
    texts = [values] if isinstance(values, str) else values
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def _require_zone_in_region(options: argparse.Namespace, zone: str) -> None:
    """Refuse a zone of AWS that another region has, and an OpenStack's region in the place of a zone.

    The names of OpenStack's zones say nothing of their region: the playbook compares them with those that exist.
    """
    if options.provider == "aws":
        region, variable = price_region(options, os.environ), "AWS_REGION"
        is_foreign, what = not zone.startswith(region), f"the zone {zone} is not in {region}, the region of the run"
    else:
        region, variable = os.environ.get("OS_REGION_NAME", ""), "OS_REGION_NAME"
        is_foreign, what = zone.lower() == region.lower(), f"{zone} is a region, and no zone"
    if is_foreign:
        raise UsageError(
            what,
            why="all workers of a run are in one region, with its prices, images and network rules",
            hint=f"{variable} sets the region of a run; for workers of a second one, start another run there, of other"
            " configs",
        )


def offers_by_type(options: argparse.Namespace, plan: FleetPlan) -> dict[MachineType, tuple[Offer, ...]]:
    """Return the offers of a run for each of its machine types; see `offers_with_fallbacks`."""
    return {kind: offers_with_fallbacks(options, plan, kind) for kind in plan.selection.machine_types}


def offers_with_fallbacks(options: argparse.Namespace, plan: FleetPlan, kind: MachineType) -> tuple[Offer, ...]:
    """Return the offers of a run in place of a planned machine type, which is the first.

    Raises:
        UsageError: when a type is unknown, too small, or has no known spot price.
    """
    from kiln.fleet import fallback_offers

    words = comma_separated_words(options, "fallback")
    zones = comma_separated_words(options, "zone")
    names = [word for word in words if word != fallback_offers.ON_DEMAND]
    types = dict(zip(names, priced_machine_types(options, names), strict=True)) if names else {}
    if fallback_offers.ON_DEMAND in words and not options.spot:
        raise UsageError(f"--fallback {fallback_offers.ON_DEMAND} needs --spot", hint="workers are on demand already")
    fallbacks = [types.get(word, word) for word in words]
    result = fallback_offers.offers_in_request_order(kind, fallbacks, zones=zones, spot=options.spot)
    for offer in result:
        _require_suitable_offer(offer, [job for job in plan.estimates if job.type in {"", kind.type}])
        if options.budget is not None and not offer.machine_type.is_priced:
            raise UsageError(
                f"the price of the fall-back {offer.machine_type.type} is unknown, so --budget cannot be kept",
                why="a worker without a price would count as free",
                hint="write a table of prices for --prices, or leave one of the options out",
            )
    return result


def _require_suitable_offer(offer: Offer, jobs: Sequence[JobEstimate]) -> None:
    kind = offer.machine_type
    if offer.spot and kind.spot_hourly is None:
        raise UsageError(
            f"no spot price of {kind.name} is known, so it is no fall-back for --spot",
            hint=f"--fallback on-demand,{kind.type} takes it on demand; kiln fleet prices --from reads spot prices",
        )
    job = next((job for job in jobs if not job.size.fits(kind)), None)
    if job is not None:
        raise UsageError(
            f"the fall-back {kind.type} is too small for {job.config}",
            why=f"it needs {job.size}",
            hint="choose a larger type, or change its size in fleet-sizes.yml or the recipe",
        )


def worker_lifetime(options: argparse.Namespace, plan: FleetPlan) -> float:
    """Return the seconds after which workers end themselves: a day, or twice the plan if that is longer.

    Raises:
        UsageError: when the playbooks' variable ``kiln_lifetime`` is too short for a build.
    """
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
    from kiln.fleet.offer_and_replacement_terms import RunTerms, greatest_cost_of_lost_workers

    way, (first, *others) = plan.selection, offers_by_type(options, plan).values()
    attempts, replacements = planned_worker_loss_limits(options, way)
    joint = joint_loss_limit(replacements, way.worker_count + (0 if way.pool is None else way.pool.workers))
    return RunTerms(
        offers=first,
        other_offers=tuple(others),
        attempts=attempts,
        replacements=replacements,
        joint_replacements=joint,
        losses=greatest_cost_of_lost_workers(
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
