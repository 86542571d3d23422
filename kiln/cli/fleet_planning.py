"""The plan of a fleet run: its machine types with their prices, what its configs need, and its limits."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.cli import fleet_controller_type_and_charge, fleet_slurm_options_and_jobs
from kiln.cli.fleet_arguments import DEFAULT_TYPE
from kiln.cli.fleet_prices import MACHINE_TYPES, merged_price_table, own_machine_types, price_region
from kiln.cli.fleet_run_folder_and_variables import playbook_variable_value
from kiln.console.text import duration_seconds
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from kiln.fleet.assumptions import Assumptions
    from kiln.fleet.plan import FleetLimits, FleetPlan, PoolShape, WorkerTestPlan
    from kiln.fleet.quotas import Quota
    from kiln.ledger.fleet import FleetLedger
    from kiln.model.feedstock import Feedstock
    from kiln.model.fleet_run import FleetRun, MachineType
    from kiln.model.job_estimate import JobEstimate, JobSize
    from kiln.store.configs_built_on_workers import RemoteConfig

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
    from kiln.fleet import plan
    from kiln.fleet import quotas as quota_limits
    from kiln.fleet.assumptions import Assumptions
    from kiln.model.job_estimate import JobEstimate, JobSize
    from kiln.scheduling.estimates import estimate_jobs

    if not configs:
        raise UsageError(UP_TO_DATE, hint="--rebuild builds them again")
    assumptions, history = Assumptions.read(), ledger.last_build_durations()
    is_slurm = options.provider == fleet_slurm_options_and_jobs.SLURM
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
    pool: PoolShape | None = None
    if is_slurm:
        kind = fleet_slurm_options_and_jobs.slurm_job_settings(options, Path()).machine_type
        job_cores = [sizes[job.config].cores or kind.cores for job in requests]
        by_cores = {cores: estimates_on_cores(cores) for cores in set(job_cores)}
        estimates = {kind: tuple(by_cores[cores][number] for number, cores in enumerate(job_cores))}
    else:
        types, cache = worker_and_cache_types(options, sizes)
        pool = requested_worker_pool(options, types, assumptions)
        estimates = {kind: estimates_on_cores(kind.cores) for kind in types}
    bounds = plan.FleetLimits(
        workers=worker_count_limit(options, len(configs)),
        cost=options.budget,
        seconds=None if options.time_limit is None else duration_seconds(options.time_limit),
        tests=tests,
        controller=controller_hourly_price(options),
    )

    def plan_within_bounds(bounds: FleetLimits) -> FleetPlan:
        return plan.plan_fleet(
            estimates,
            assumptions=assumptions,
            bounds=bounds,
            cache=cache,
            spot=options.spot,
            optimize=options.optimize,
            dependent=is_slurm,
            pool=pool,
            alone=() if pool is None else estimates_on_cores(pool.machine_type.cores),
        )

    return quota_limits.plan_within_quotas(quotas, plan_within_bounds, bounds)


def requested_worker_pool(
    options: argparse.Namespace, types: Sequence[MachineType], assumptions: Assumptions
) -> PoolShape | None:
    """Return the pool that the options ask for, None without one.

    Raises:
        UsageError: when the cores of its workers, or of those that build, are unknown.
    """
    from kiln.fleet.plan import PoolShape

    if not getattr(options, "pool", None):
        return None
    (kind,) = priced_machine_types(options, [options.pool_type]) if options.pool_type else types[:1]
    unknown = [each.type for each in (kind, *types) if not each.cores]
    if unknown:
        raise UsageError(
            f"--pool needs machine types with known cores, and those of {unknown[0]} are unknown",
            hint="kiln_static_hosts in a file for --vars may have the cores of each host",
        )
    cores = assumptions.pool_cores_with_assumptions(options.pool * kind.cores)
    return PoolShape(machine_type=kind, workers=options.pool, cores=cores)


def worker_and_cache_types(
    options: argparse.Namespace, sizes: Mapping[str, JobSize]
) -> tuple[list[MachineType], MachineType | None]:
    """Return the machine types to choose from, and that of the cache if there is one, with their prices.

    Raises:
        UsageError: when the provider has none that holds a config, or none of a name.
    """
    from kiln.fleet import machine_choice, machine_types

    offers = priced_machine_types(options, options.types or [])
    if not options.types and options.provider != machine_types.EXISTING_HOSTS:
        machine_choice.require_large_enough_type(offers, sizes)
        offers = default_machine_types(offers, list(sizes.values()))
    return offers, next(iter(priced_machine_types(options, [options.cache]))) if options.cache else None


def priced_machine_types(options: argparse.Namespace, names: Sequence[str]) -> list[MachineType]:
    """Return a provider's machine types of some names, or all, with their prices.

    Raises:
        UsageError: when the provider has none of a name.
    """
    from kiln.fleet import machine_types, price_table

    table = machine_type_table(options)
    prices, region = merged_price_table(options.prices, os.environ), price_region(options, os.environ)

    kinds = (
        machine_types.select_types_by_name(table, provider=options.provider, types=names)
        if names
        else [kind for kind in table if kind.provider == options.provider]
    )
    return [price_table.with_regional_prices(kind, prices, region=region) for kind in kinds]


def priced_controller_type(options: argparse.Namespace) -> MachineType | None:
    """Return the machine type of the controller that ``--detach`` provisions, with its price; None without one."""
    from kiln.fleet import machine_types, price_table

    if (
        not options.detach
        or options.controller is not None
        or options.provider not in fleet_controller_type_and_charge.FLAVORS
    ):
        return None
    if options.controller_type is not None:
        return priced_machine_types(options, [options.controller_type])[0]
    (kind,) = machine_types.machine_types_from_rows(
        [fleet_controller_type_and_charge.controller_type_row(options.provider)], "the type of controllers"
    )
    prices = merged_price_table(options.prices, os.environ)
    return price_table.with_regional_prices(kind, prices, region=price_region(options, os.environ))


def controller_hourly_price(options: argparse.Namespace) -> float:
    """Return the price of an hour of a run's controller: the one to provision, or that on which this process runs.

    Raises:
        UsageError: when it is unknown, and the run has a budget.
    """
    kind, charge = priced_controller_type(options), fleet_controller_type_and_charge.own_controller_charge(os.environ)
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
    from kiln.fleet import machine_types

    rows = playbook_variable_value("kiln_machine_types", options.vars)
    table = own_machine_types() if rows is None else machine_types.machine_types_from_rows(rows, "kiln_machine_types")
    if options.provider != machine_types.EXISTING_HOSTS:
        return table
    (unknown,) = (kind for kind in table if kind.provider == machine_types.EXISTING_HOSTS)
    hosts = playbook_variable_value("kiln_static_hosts", options.vars)
    return tuple(machine_types.types_of_existing_hosts(hosts, unknown))


def worker_count_limit(options: argparse.Namespace, configs: int) -> int:
    """Return the number of workers at most; a scheduler with a queue of its own takes all configs at once."""
    if options.workers is not None:
        return int(options.workers)
    return configs if options.provider == fleet_slurm_options_and_jobs.SLURM else WORKERS


def plan_with_job_sizes(plan: FleetPlan, sizes: Mapping[str, JobSize]) -> FleetPlan:
    """Return a plan of Slurm's jobs that shows what each config needs of its own job.

    A run's own plan lacks it: Slurm itself ends jobs at their time limits.
    """
    estimates = (dataclasses.replace(job, size=sizes[job.config]) for job in plan.estimates)
    return dataclasses.replace(plan, estimates=tuple(estimates))


def config_resource_needs(feedstock: Feedstock, names: Sequence[str]) -> dict[str, JobSize]:
    """Return what each config needs of a worker; the recipe is rendered only if it may say so."""
    from kiln import expand
    from kiln.fleet import declared_config_sizes

    entries = declared_config_sizes.read_size_file(feedstock.root)
    variants = {entry.name: entry for entry in expand.read_configs(feedstock, names)}
    recipe = declared_config_sizes.recipe_sizes(feedstock, tuple(variants.values()))
    return {
        name: declared_config_sizes.config_size(entries, entry.variant, recipe.get(name))
        for name, entry in variants.items()
    }


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
    others = [name for name in (options.cache, options.pool_type) if name]
    used = dict.fromkeys([*options.types, *others])
    if absent := [name for name in used if name not in known]:
        raise UsageError(
            f"the fleet run {run.id} cannot be resumed: its machine type {absent[0]!r} is no longer in the table",
            why=f"{MACHINE_TYPES.name}, or kiln_static_hosts in --vars, changed since the run began",
            hint=f"run 'kiln fleet down {run.id}', which terminates its workers, then this command again",
        )
