"""The plan of a fleet run: its machine types with their prices, what its configs need, and its limits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kiln.cli import fleet_slurm
from kiln.cli.fleet_arguments import DEFAULT_TYPE, seconds
from kiln.cli.fleet_prices import MACHINE_TYPES, merged_table, region_of
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from kiln.fleet.plan import FleetPlan
    from kiln.ledger.fleet import FleetLedger
    from kiln.model.feedstock import Feedstock
    from kiln.model.fleet import JobSize, MachineType
    from kiln.store.worker_results import RemoteConfig

WORKERS = 4
UP_TO_DATE = "nothing to build: all selected configs are up to date"


def plan_of(
    options: argparse.Namespace, feedstock: Feedstock, configs: Sequence[RemoteConfig], ledger: FleetLedger
) -> FleetPlan:
    """Return the plan for configs.

    Raises:
        UsageError: no config is selected, or a machine type is unknown.
        FleetLimit: when no arrangement stays within the limits.
    """
    from kiln.fleet import machine_types, plan
    from kiln.fleet.assumptions import Assumptions
    from kiln.model.fleet import JobSize
    from kiln.scheduling.estimates import RequestedJob, estimate_jobs

    if not configs:
        raise UsageError(UP_TO_DATE, hint="--rebuild builds them again")
    assumptions, history = Assumptions.read(), ledger.build_durations()
    sizes = {} if options.provider == fleet_slurm.SLURM else sizes_of(feedstock, configs)
    requests = [
        RequestedJob(
            config=config.config, group=config.group, key=config.inputs.key, size=sizes.get(config.config, JobSize())
        )
        for config in configs
    ]
    cache = [options.cache] if options.cache else []
    types: tuple[MachineType, ...]
    if options.provider == fleet_slurm.SLURM:
        names, types = ["job"], (fleet_slurm.machine_type(options),)
    else:
        table = machine_types.read(MACHINE_TYPES)
        prices, region = merged_table(options.prices, os.environ), region_of(options, os.environ)
        names = options.types or [default_type(table, options.provider, list(sizes.values()))]
        selection = machine_types.select(table, provider=options.provider, types=[*names, *cache])
        types = tuple(prices.apply(machine_type, region=region) for machine_type in selection)
    return plan.plan(
        {
            kind: estimate_jobs(requests, history, cores=kind.cores, assumptions=assumptions)
            for kind in types[: len(names)]
        },
        overheads=assumptions.overheads,
        bounds=plan.FleetBounds(
            workers=worker_limit(options, len(configs)),
            cost=options.budget,
            seconds=None if options.time_limit is None else seconds(options.time_limit),
        ),
        cache=types[-1] if cache else None,
        spot=options.spot,
        optimize=options.optimize,
    )


def worker_limit(options: argparse.Namespace, configs: int) -> int:
    """Return the number of workers at most; a scheduler with a queue of its own takes all configs at once."""
    if options.workers is not None:
        return int(options.workers)
    return configs if options.provider == fleet_slurm.SLURM else WORKERS


def sizes_of(feedstock: Feedstock, configs: Sequence[RemoteConfig]) -> dict[str, JobSize]:
    """Return what each config needs of a worker."""
    from kiln import expand
    from kiln.fleet import sizes

    entries = sizes.read(feedstock.root, seconds)
    names = [config.config for config in configs]
    return {entry.name: sizes.size_of(entries, entry.variant) for entry in expand.read_all(feedstock, names)}


def default_type(table: Sequence[MachineType], provider: str, sizes: Sequence[JobSize]) -> str:
    """Return the machine type to use when none is named: the usual one, or the first that is large enough."""
    types = [machine_type for machine_type in table if machine_type.provider == provider]
    types.sort(key=lambda machine_type: machine_type.type != DEFAULT_TYPE)
    fitting = (machine_type for machine_type in types if all(size.fits(machine_type) for size in sizes))
    chosen = next(fitting, types[0] if types else None)
    return DEFAULT_TYPE if chosen is None else chosen.type
