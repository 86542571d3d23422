"""The plan of a run by its options: machine types with prices, offers, limits, the controller's price, and terms."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from kiln.base.errors import UsageError
from kiln.feedstock import config_file
from kiln.feedstock.settings import TypedSettings
from kiln.feedstock.sizes import config_sizes
from kiln.feedstock.workflow_settings import OWN, stated_hours
from kiln.fleet import worker_policies
from kiln.fleet.model import LIFETIME
from kiln.fleet.options import ANSIBLE, DEFAULT_TYPE, SLURM
from kiln.fleet.plan import choice
from kiln.fleet.plan import plan as fleet_plan
from kiln.fleet.plan import prices as fleet_prices
from kiln.fleet.plan.output import RunTerms, greatest_cost_of_lost_workers
from kiln.fleet.plan.plan import Assumptions, FleetLimits, FleetPlan
from kiln.fleet.plan.prices import price_region, require_price
from kiln.run.simulation import DEFAULT, estimate_jobs
from kiln.state.ledger.ledger import BuildDuration
from kiln.state.results import JobEstimate, JobSize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kiln.fleet.model import FleetRun, MachineType, Offer
    from kiln.fleet.options import FleetOptions
    from kiln.fleet.plan.plan import Quota, WorkerTestPlan
    from kiln.fleet.records import FleetLedger
    from kiln.recipe.feedstock import Feedstock
    from kiln.state.store.cache import RemoteConfig

MACHINE_TYPES = ANSIBLE / "group_vars" / "all" / "machine_types.yml"
WORKERS = 4
UP_TO_DATE = "nothing to build: all selected configs are up to date"
CONTROLLER_TYPE = "controller"
# The machines that a controller gets where no type is named: it builds nothing, and packages wait on its disk (GB). The
# third figure is the step of billing in seconds, as of the workers in ansible/group_vars/all/machine_types.yml.
FLAVORS = {"aws": ("t3.medium", 60, 1), "openstack": ("c3-4", 50, 3600)}


def plan_run(
    feedstock: Feedstock,
    options: FleetOptions,
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
    if not configs:
        raise UsageError(UP_TO_DATE, hint="--rebuild builds them again")
    assumptions, history = Assumptions.read(), ledger.last_build_durations()
    sizes = config_resource_needs(feedstock, [config.config for config in configs])
    requests = [
        JobEstimate(
            config=config.config,
            group=config.group,
            key=config.inputs.key,
            # a job of Slurm has the size that its config needs
            size=sizes[config.config] if options.slurm is None else JobSize(),
        )
        for config in configs
    ]
    stated = stated_durations(feedstock, sizes, {config.config: config.group for config in configs})

    def estimates_on_cores(cores: float) -> tuple[JobEstimate, ...]:
        return estimate_jobs(requests, history, cores=cores, assumptions=assumptions, stated=stated)

    cache: MachineType | None = None
    if options.slurm is not None:
        kind = options.slurm.machine_type
        job_cores = [sizes[job.config].cores or kind.cores for job in requests]
        by_cores = {cores: estimates_on_cores(cores) for cores in set(job_cores)}
        estimates = {kind: tuple(by_cores[cores][number] for number, cores in enumerate(job_cores))}
    else:
        types = priced_machine_types(options, options.types)
        if not options.types and options.provider != choice.EXISTING_HOSTS:
            choice.require_large_enough_type(types, sizes)
            types = machine_types_to_compare(types, list(sizes.values()), spot=options.spot)
        cache = priced_machine_types(options, [options.cache])[0] if options.cache else None
        estimates = {kind: estimates_on_cores(kind.cores) for kind in types}
    controller = priced_controller_type(options)  # the one to provision, or else that on which this process runs
    hourly = 0.0 if options.own_charge is None else options.own_charge.hourly
    if controller is not None:
        option, what = ("" if options.cost_limit is None else "--cost-limit"), "the controller's machine type"
        otherwise = "name another --controller-type"
        fleet_prices.require_price(controller, option, what=f"{what} {controller.name}", otherwise=otherwise)
        hourly = controller.hourly_price(spot=False) if controller.is_priced else 0.0
    bounds = FleetLimits(
        workers=worker_count_limit(options, len(configs)),
        cost=options.cost_limit,
        seconds=options.time_limit,
        tests=tests,
        controller=hourly,
        quotas=quotas,
    )
    return fleet_plan.plan_fleet(
        estimates,
        assumptions=assumptions,
        bounds=bounds,
        cache=cache,
        spot=options.spot,
        optimize=options.optimize,
        dependent=options.slurm is not None,
    )


def config_resource_needs(feedstock: Feedstock, names: Sequence[str]) -> dict[str, JobSize]:
    """Return what each config needs of a worker."""
    sizes = config_sizes(feedstock, config_file.read_configs(feedstock, names))
    return {
        config: JobSize(
            cores=int(size.get("cores", 0)),
            memory=size.get("memory", 0.0),
            disk=size.get("disk", 0.0),
            gpus=int(size.get("gpus", 0)),
            time_limit=size.get("time_limit"),
            hours=size.get("hours", 0.0),
        )
        for config, size in sizes.items()
    }


def stated_durations(
    feedstock: Feedstock, sizes: Mapping[str, JobSize], groups: Mapping[str, str]
) -> tuple[BuildDuration, ...]:
    """Return how long the feedstock says that configs take."""
    own = TypedSettings.read(feedstock.conda_forge_yml).get_nested(OWN)
    stated = {
        name: stated_hours(own, groups[name], {"hours": size.hours, "cores": size.cores})
        for name, size in sizes.items()
    }
    return tuple(
        BuildDuration(config=name, cold=True, seconds=3600 * hours, cores=cores)
        for name, (hours, cores) in stated.items()
        if hours
    )


def worker_count_limit(options: FleetOptions, configs: int) -> int:
    """Return the number of workers at most; a scheduler with a queue of its own takes all configs at once."""
    if options.workers is not None:
        return options.workers
    return configs if options.provider == SLURM else WORKERS


# Machine types with their prices


@functools.cache
def own_machine_types() -> tuple[MachineType, ...]:
    """Return kiln's own table of machine types, which a command may need several times."""
    return choice.read_machine_types(MACHINE_TYPES)


def machine_type_table(options: FleetOptions) -> tuple[MachineType, ...]:
    """Return the machine types of all providers, from kiln's table or that in ``--vars``, as the playbooks do.

    Those of existing hosts are the sizes that ``--vars`` gives them.

    Raises:
        UsageError: without a file that could name existing hosts.
    """
    rows = options.variables.get("kiln_machine_types")
    table = own_machine_types() if rows is None else choice.machine_types_from_rows(rows, "kiln_machine_types")
    if options.provider != choice.EXISTING_HOSTS:
        return table
    if not options.vars:
        hint = "--vars FILE, whose kiln_static_hosts has their addresses, users and keys"
        raise UsageError("no existing machine is named", hint=hint)
    (unknown,) = (kind for kind in table if kind.provider == choice.EXISTING_HOSTS)
    return tuple(choice.types_of_existing_hosts(options.variables.get("kiln_static_hosts"), unknown))


def priced_machine_types(options: FleetOptions, names: Sequence[str]) -> list[MachineType]:
    """Return a provider's machine types of some names, or all, with their prices.

    Raises:
        UsageError: when the provider has none of a name.
    """
    table = machine_type_table(options)
    kinds = (
        choice.select_types_by_name(table, provider=options.provider, types=names)
        if names
        else [kind for kind in table if kind.provider == options.provider]
    )
    return _with_prices(options, kinds)


def _with_prices(options: FleetOptions, kinds: Sequence[MachineType]) -> list[MachineType]:
    prices, region = fleet_prices.merged_price_table(options.prices), price_region(options)
    return [fleet_prices.with_regional_prices(kind, prices, region=region) for kind in kinds]


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


def machine_types_to_compare(
    offers: Sequence[MachineType], sizes: Sequence[JobSize], *, spot: bool
) -> list[MachineType]:
    """Return the machine types to choose from when none is named: the default ones, and all sizes of the usual one.

    Those have the same processors, so the estimates of times, by the number of cores, compare them rightly.
    """
    kinds, family = default_machine_types(offers, sizes), DEFAULT_TYPE.rpartition("-")[0]
    sized = [
        kind for kind in offers if kind.type.rpartition("-")[0] == family and any(size.fits(kind) for size in sizes)
    ]
    priced = [kind for kind in sized if kind.is_priced and (kind.spot_hourly is not None or not spot)]
    return list(dict.fromkeys([*kinds, *(priced if all(kind in priced for kind in kinds) else [])]))


def require_known_machine_types(options: FleetOptions, run: FleetRun) -> None:
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


# The controller of a detached run


def controller_type_row(provider: str) -> dict[str, Any]:
    """Return the row of the playbooks' table of machine types for a controller."""
    flavor, disk, billed = FLAVORS[provider]
    size = {"cores": 2, "memory": 4, "disk": disk, "gpus": 0, "gpu": "", "billed": billed}
    return {"provider": provider, "type": CONTROLLER_TYPE, "flavor": flavor, **size}


def priced_controller_type(options: FleetOptions) -> MachineType | None:
    """Return the machine type of the controller that ``--detach`` provisions, with its price; None without one."""
    if not options.detach or options.controller is not None or options.provider not in FLAVORS:
        return None
    if options.controller_type is not None:
        return priced_machine_types(options, [options.controller_type])[0]
    kinds = choice.machine_types_from_rows([controller_type_row(options.provider)], "the type of controllers")
    return _with_prices(options, kinds)[0]


# Offers, and the terms of a run


def offers_by_type(options: FleetOptions, plan: FleetPlan) -> dict[MachineType, tuple[Offer, ...]]:
    """Return the offers of a run for each of its machine types, which is the first, with those in its place.

    Raises:
        UsageError: when a type is unknown, too small, or has no known spot price.
    """
    names = [word for word in options.fallbacks if word != worker_policies.ON_DEMAND]
    types = dict(zip(names, priced_machine_types(options, names), strict=True)) if names else {}
    if worker_policies.ON_DEMAND in options.fallbacks and not options.spot:
        raise UsageError(f"--fallback {worker_policies.ON_DEMAND} needs --spot", hint="workers are on demand already")
    fallbacks = [types.get(word, word) for word in options.fallbacks]
    result = {
        kind: worker_policies.offers_in_request_order(kind, fallbacks, zones=options.zones, spot=options.spot)
        for kind in plan.selection.machine_types
    }
    option = "" if options.cost_limit is None else "--cost-limit"
    for planned, offers in result.items():
        jobs = [job for job in plan.estimates if job.type in {"", planned.type}]
        for offer in offers:
            kind = offer.machine_type
            on_demand = f"--fallback {worker_policies.ON_DEMAND},{kind.type} takes it on demand"
            otherwise = on_demand if offer.spot and kind.spot_hourly is None else "leave one of the options out"
            require_price(kind, option, spot=offer.spot, what=f"the fall-back {kind.type}", otherwise=otherwise)
            if small := next((job for job in jobs if not job.size.fits(kind)), None):
                raise UsageError(
                    f"the fall-back {kind.type} is too small for {small.config}",
                    why=f"it needs {small.size}",
                    hint="choose a larger type, or change its size in fleet-sizes.yml or the recipe",
                )
    return result


def worker_lifetime(options: FleetOptions, plan: FleetPlan) -> float:
    """Return the seconds after which workers end themselves: a day, or twice the plan if that is longer.

    Raises:
        UsageError: when the playbooks' variable ``kiln_lifetime`` is too short for a build.
    """
    text = options.variable_text("kiln_lifetime")
    if not text:
        return max(LIFETIME, 2 * plan.selection.seconds)
    longest = max((job.cold for job in plan.estimates if job.source != DEFAULT), default=0.0)
    if not text.isdecimal() or int(text) <= longest:
        why = f"the longest build takes {longest:.0f} s, and a worker ends itself at the end of its lifetime"
        raise UsageError(f"invalid kiln_lifetime {text!r}", why=why, hint="leave it out: it follows from the plan")
    return float(text)


def run_terms_of_plan(options: FleetOptions, plan: FleetPlan) -> RunTerms:
    """Return the terms of a run by a plan."""
    (first, *others) = offers_by_type(options, plan).values()
    way = plan.selection
    attempts, replacements = options.loss_limits(workers=way.worker_count, worker_seconds=sum(way.worker_seconds))
    joint = worker_policies.joint_loss_limit(replacements, way.worker_count)
    every = [offer for offers in (first, *others) for offer in offers]
    return RunTerms(
        offers=first,
        other_offers=tuple(others),
        attempts=attempts,
        replacements=replacements,
        joint_replacements=joint,
        losses=greatest_cost_of_lost_workers(plan, every, replacements, joint, Assumptions.read().startup),
        lifetime=worker_lifetime(options, plan),
        controller=priced_controller_type(options),
        keep=options.keep,
    )
