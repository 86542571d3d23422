"""The plan of a fleet run: machine types with prices, quotas, offers, limits, and the controller's charge."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import UsageError
from kiln.base.files import text_or_empty
from kiln.base.system.machine import PACKAGE_ROOT
from kiln.base.text import duration_seconds
from kiln.cli.fleet import slurm
from kiln.cli.fleet.arguments import DEFAULT_TYPE, planned_worker_loss_limits
from kiln.cli.fleet.prices import MACHINE_TYPES, merged_price_table, own_machine_types, price_region
from kiln.cli.fleet.site import playbook_site, playbook_variable_text, playbook_variable_value
from kiln.fleet.run_config import LIFETIME

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from kiln.fleet.detached.controller import RunKey
    from kiln.fleet.model import FleetRun, MachineType, Offer
    from kiln.fleet.plan.output import RunTerms
    from kiln.fleet.plan.plan import FleetLimits, FleetPlan, Quota, WorkerTestPlan
    from kiln.fleet.records import FleetLedger
    from kiln.recipe.feedstock import Feedstock
    from kiln.state.results import ControllerCharge, JobEstimate, JobSize
    from kiln.state.store.cache import RemoteConfig


CONTROLLER_TYPE = "controller"
# The machines that a controller gets where no type is named: it builds nothing, and packages wait on its disk (GB). The
# third figure is the step of billing in seconds, as of the workers in ansible/group_vars/all/machine_types.yml.
FLAVORS = {"aws": ("t3.medium", 60, 1), "openstack": ("c3-4", 50, 3600)}
CHARGE = "KILN_FLEET_CONTROLLER"  # the variable by which a controller knows its own price
KEEP = "72h"  # for which packages wait


def controller_type_row(provider: str) -> dict[str, Any]:
    """Return the row of the playbooks' table of machine types for a controller."""
    flavor, disk, billed = FLAVORS[provider]
    size = {"cores": 2, "memory": 4, "disk": disk, "gpus": 0, "gpu": "", "billed": billed}
    return {"provider": provider, "type": CONTROLLER_TYPE, "flavor": flavor, **size}


def controller_price_variable(kind: MachineType, since: float) -> dict[str, str]:
    """Return the variable that tells a controller its price from a time on; none where it is unknown, or nothing."""
    hourly = kind.hourly_price(spot=False)
    if not (kind.is_priced and hourly):
        return {}
    return {CHARGE: " ".join((repr(hourly), repr(kind.billed), repr(since), kind.currency, kind.name))}


def own_controller_charge(environment: Mapping[str, str]) -> ControllerCharge | None:
    """Return the charge for the controller on which this process runs; None elsewhere."""
    from kiln.state.results import ControllerCharge

    words = environment.get(CHARGE, "").split()
    if len(words) != 5:
        return None
    hourly, billed, since = map(float, words[:3])
    return ControllerCharge(hourly=hourly, billed=billed, since=since, currency=words[3], name=words[4])


def controller_end_text(key: RunKey, *, is_alive: bool, is_removed: bool) -> str:
    """Return how a controller has ended; what it has besides its machine ``is_removed`` only where the run began."""
    state = "still answers, and ends by its lease" if is_alive else "has ended"
    text = f"{key.run}: its controller {state}"
    if is_removed or key.provider not in FLAVORS:
        return text
    left = f"its security group remains at {key.provider}, and costs nothing"
    return f"{text}\n{key.run}: {left}; kiln fleet down {key.run}, where the run began, removes it"


SECONDS = 30.0  # for the answer, Ansible's own start included
# Variables that name credentials, and the files that have them otherwise, with the variables that name these. Those of
# a machine, such as an instance's role, are not looked for: the search alone takes seconds without any.
CREDENTIALS = {
    "aws": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    "openstack": ("OS_CLOUD", "OS_AUTH_URL"),
}
FILES = {"aws": {"AWS_SHARED_CREDENTIALS_FILE": ".aws/credentials", "AWS_CONFIG_FILE": ".aws/config"}}
# The keys of a profile from which botocore has credentials (botocore/credentials.py); a region alone does not count.
PROFILE = re.compile(
    r"^\s*(aws_access_key_id|role_arn|web_identity_token_file|credential_process|sso_start_url|login_session)\s*=",
    re.MULTILINE,
)


def has_credentials(provider: str, environment: Mapping[str, str]) -> bool:
    """Return whether the environment, or a file of the user's, names credentials of a provider that has quotas."""
    home = Path(environment.get("HOME", "/"))
    files = (home / environment.get(name, path) for name, path in FILES.get(provider, {}).items())
    return any(environment.get(name) for name in CREDENTIALS.get(provider, ())) or any(
        PROFILE.search(text_or_empty(file)) for file in files
    )


def account_quotas(options: argparse.Namespace, feedstock: Feedstock) -> tuple[Quota, ...]:
    """Return the quotas of the account; none without credentials, with ``--offline``, or if the provider gives none.

    The controller that ``--detach`` provisions has its part of them. A plan never fails for lack of them, and makes no
    environment to ask.
    """
    from kiln.base import bootstrap
    from kiln.fleet.ansible.playbooks import PlaybookRunner
    from kiln.fleet.plan.plan import Quota

    if options.offline or not has_credentials(options.provider, os.environ):
        return ()
    if not bootstrap.has_fleet_environment(PACKAGE_ROOT):
        print("quotas are not known: the first 'kiln fleet run' makes the environment to ask for them", file=sys.stderr)
        return ()
    site = playbook_site(options, feedstock, "quota", options.provider)
    site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    playbooks = PlaybookRunner(site)
    timer = threading.Timer(SECONDS, playbooks.stop_all_playbooks)
    timer.start()
    try:
        result = playbooks.run_playbook("quota.yml")
    finally:
        timer.cancel()
    if not result.ok or result.answer is None:
        reason = result.failure_reason("localhost").splitlines()[0][:200]
        print(f"quotas are not known: {reason}; see {site.folder / 'playbooks.log'}", file=sys.stderr)
        return ()
    controller = priced_controller_type(options)
    return tuple(Quota.from_provider_answer(row, controller) for row in result.answer["quotas"])


WORKERS = 4
UP_TO_DATE = "nothing to build: all selected configs are up to date"


def fleet_plan_of_configs(
    options: argparse.Namespace,
    feedstock: Feedstock,
    configs: Sequence[RemoteConfig],
    ledger: FleetLedger,
    tests: WorkerTestPlan | None = None,
    quotas: tuple[Quota, ...] = (),
) -> FleetPlan:
    """Return the plan for configs, and their ``tests`` on a worker after the run, within the limits of both.

    Machines that are planned are within ``quotas``; `FleetPlan.without_quotas` is the plan's selection without them.

    Raises:
        UsageError: no config is selected, or a machine type is unknown.
        FleetLimit: when no arrangement stays within the limits.
    """
    from kiln.fleet.plan import plan as plan_plan
    from kiln.fleet.plan.plan import Assumptions
    from kiln.run.simulation import estimate_jobs
    from kiln.state.results import JobEstimate, JobSize

    if not configs:
        raise UsageError(UP_TO_DATE, hint="--rebuild builds them again")
    assumptions, history = Assumptions.read(), ledger.last_build_durations()
    is_slurm = options.provider == slurm.SLURM
    sizes = config_resource_needs(feedstock, [config.config for config in configs])
    requests = [
        JobEstimate(
            config=config.config,
            group=config.group,
            key=config.inputs.key,
            size=JobSize() if is_slurm else sizes[config.config],  # a job has the size that its config needs
        )
        for config in configs
    ]

    def estimates_on_cores(cores: float) -> tuple[JobEstimate, ...]:
        return estimate_jobs(requests, history, cores=cores, assumptions=assumptions)

    cache: MachineType | None = None
    if is_slurm:
        kind = slurm.slurm_job_settings(options, Path()).machine_type
        job_cores = [sizes[job.config].cores or kind.cores for job in requests]
        by_cores = {cores: estimates_on_cores(cores) for cores in set(job_cores)}
        estimates = {kind: tuple(by_cores[cores][number] for number, cores in enumerate(job_cores))}
    else:
        types, cache = worker_and_cache_types(options, sizes)
        estimates = {kind: estimates_on_cores(kind.cores) for kind in types}
    bounds = plan_plan.FleetLimits(
        workers=worker_count_limit(options, len(configs)),
        cost=options.budget,
        seconds=None if options.time_limit is None else duration_seconds(options.time_limit),
        tests=tests,
        controller=controller_hourly_price(options),
    )

    def plan_within_bounds(bounds: FleetLimits) -> FleetPlan:
        return plan_plan.plan_fleet(
            estimates,
            assumptions=assumptions,
            bounds=bounds,
            cache=cache,
            spot=options.spot,
            optimize=options.optimize,
            dependent=is_slurm,
        )

    return plan_plan.plan_within_quotas(quotas, plan_within_bounds, bounds)


def worker_and_cache_types(
    options: argparse.Namespace, sizes: Mapping[str, JobSize]
) -> tuple[list[MachineType], MachineType | None]:
    """Return the machine types to choose from, and that of the cache if there is one, with their prices.

    Raises:
        UsageError: when the provider has none that holds a config, or none of a name.
    """
    from kiln.fleet.plan import choice

    offers = priced_machine_types(options, options.types or [])
    if not options.types and options.provider != choice.EXISTING_HOSTS:
        choice.require_large_enough_type(offers, sizes)
        offers = default_machine_types(offers, list(sizes.values()))
    return offers, next(iter(priced_machine_types(options, [options.cache]))) if options.cache else None


def priced_machine_types(options: argparse.Namespace, names: Sequence[str]) -> list[MachineType]:
    """Return a provider's machine types of some names, or all, with their prices.

    Raises:
        UsageError: when the provider has none of a name.
    """
    from kiln.fleet.plan import choice
    from kiln.fleet.plan import prices as plan_prices

    table = machine_type_table(options)
    prices, region = merged_price_table(options.prices, os.environ), price_region(options, os.environ)

    kinds = (
        choice.select_types_by_name(table, provider=options.provider, types=names)
        if names
        else [kind for kind in table if kind.provider == options.provider]
    )
    return [plan_prices.with_regional_prices(kind, prices, region=region) for kind in kinds]


def priced_controller_type(options: argparse.Namespace) -> MachineType | None:
    """Return the machine type of the controller that ``--detach`` provisions, with its price; None without one."""
    from kiln.fleet.plan import choice
    from kiln.fleet.plan import prices as plan_prices

    if not options.detach or options.controller is not None or options.provider not in FLAVORS:
        return None
    if options.controller_type is not None:
        return priced_machine_types(options, [options.controller_type])[0]
    (kind,) = choice.machine_types_from_rows([controller_type_row(options.provider)], "the type of controllers")
    prices = merged_price_table(options.prices, os.environ)
    return plan_prices.with_regional_prices(kind, prices, region=price_region(options, os.environ))


def controller_hourly_price(options: argparse.Namespace) -> float:
    """Return the price of an hour of a run's controller: the one to provision, or that on which this process runs.

    Raises:
        UsageError: when it is unknown, and the run has a budget.
    """
    kind, charge = priced_controller_type(options), own_controller_charge(os.environ)
    if kind is None:
        return 0.0 if charge is None else charge.hourly
    if not kind.is_priced and options.budget is not None:
        raise UsageError(
            f"the price of the controller's machine type {kind.name} is unknown, so --budget cannot be kept",
            hint="write a table of prices for --prices, or name another --controller-type",
        )
    return kind.hourly_price(spot=False) if kind.is_priced else 0.0


def machine_type_table(options: argparse.Namespace) -> tuple[MachineType, ...]:
    """Return the machine types of all providers, from kiln's table or that in ``--vars``, as the playbooks do.

    Those of existing hosts are the sizes that ``--vars`` gives them.
    """
    from kiln.fleet.plan import choice

    rows = playbook_variable_value("kiln_machine_types", options.vars)
    table = own_machine_types() if rows is None else choice.machine_types_from_rows(rows, "kiln_machine_types")
    if options.provider != choice.EXISTING_HOSTS:
        return table
    (unknown,) = (kind for kind in table if kind.provider == choice.EXISTING_HOSTS)
    hosts = playbook_variable_value("kiln_static_hosts", options.vars)
    return tuple(choice.types_of_existing_hosts(hosts, unknown))


def worker_count_limit(options: argparse.Namespace, configs: int) -> int:
    """Return the number of workers at most; a scheduler with a queue of its own takes all configs at once."""
    if options.workers is not None:
        return int(options.workers)
    return configs if options.provider == slurm.SLURM else WORKERS


def plan_with_job_sizes(plan: FleetPlan, sizes: Mapping[str, JobSize]) -> FleetPlan:
    """Return a plan of Slurm's jobs that shows what each config needs of its own job.

    A run's own plan lacks it: Slurm itself ends jobs at their time limits.
    """
    estimates = (dataclasses.replace(job, size=sizes[job.config]) for job in plan.estimates)
    return dataclasses.replace(plan, estimates=tuple(estimates))


def config_resource_needs(feedstock: Feedstock, names: Sequence[str]) -> dict[str, JobSize]:
    """Return what each config needs of a worker; the recipe is rendered only if it may say so."""
    from kiln.feedstock import config_file
    from kiln.fleet.plan import limits

    entries = limits.read_size_file(feedstock.root)
    variants = {entry.name: entry for entry in config_file.read_configs(feedstock, names)}
    recipe = limits.recipe_sizes(feedstock, tuple(variants.values()))
    return {name: limits.config_size(entries, entry.variant, recipe.get(name)) for name, entry in variants.items()}


def default_machine_types(offers: Sequence[MachineType], sizes: Sequence[JobSize]) -> list[MachineType]:
    """Return the machine types to use when none is named: for each size the usual one, or the cheapest that holds it.

    The usual one is a provider's only one, if it lacks `DEFAULT_TYPE`, or its first.
    """
    usual = next((kind for kind in offers if kind.type == DEFAULT_TYPE), offers[0])
    by_price = sorted(
        offers, key=lambda kind: (kind.gpus, not kind.is_priced, kind.hourly_price(spot=False), kind.cores)
    )
    kinds = [next((kind for kind in (usual, *by_price) if size.fits(kind)), usual) for size in sizes]
    return list(dict.fromkeys(kinds or [usual]))


def require_known_machine_types(options: argparse.Namespace, run: FleetRun) -> None:
    """Refuse to resume a run whose machine types are no longer in the table.

    Raises:
        UsageError: with the way to give its workers back.
    """
    known = {kind.type for kind in machine_type_table(options) if kind.provider == options.provider}
    used = dict.fromkeys([*options.types, *([options.cache] if options.cache else [])])
    if absent := [name for name in used if name not in known]:
        raise UsageError(
            f"the fleet run {run.id} cannot be resumed: its machine type {absent[0]!r} is no longer in the table",
            why=f"{MACHINE_TYPES.name}, or kiln_static_hosts in --vars, changed since the run began",
            hint=f"run 'kiln fleet down {run.id}', which terminates its workers, then this command again",
        )


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
    from kiln.fleet import worker_policies

    words = comma_separated_words(options, "fallback")
    zones = comma_separated_words(options, "zone")
    names = [word for word in words if word != worker_policies.ON_DEMAND]
    types = dict(zip(names, priced_machine_types(options, names), strict=True)) if names else {}
    if worker_policies.ON_DEMAND in words and not options.spot:
        raise UsageError(f"--fallback {worker_policies.ON_DEMAND} needs --spot", hint="workers are on demand already")
    fallbacks = [types.get(word, word) for word in words]
    result = worker_policies.offers_in_request_order(kind, fallbacks, zones=zones, spot=options.spot)
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
    from kiln.fleet.plan.prices import price_row_hint

    kind = offer.machine_type
    if offer.spot and kind.spot_hourly is None:
        raise UsageError(
            f"no spot price of {kind.name} is known, so it is no fall-back for --spot",
            hint=f"--fallback on-demand,{kind.type} takes it on demand; {price_row_hint(kind, 'spot')}",
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
    from kiln.fleet.plan.output import RunTerms, greatest_cost_of_lost_workers
    from kiln.fleet.plan.plan import Assumptions
    from kiln.fleet.worker_policies import joint_loss_limit

    way, (first, *others) = plan.selection, offers_by_type(options, plan).values()
    attempts, replacements = planned_worker_loss_limits(options, way)
    joint = joint_loss_limit(replacements, way.worker_count)
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
