"""``kiln fleet``: cells built on many machines at once, planned, run, looked at, and given back."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from typing import TYPE_CHECKING, Any

from kiln.cli import build, cells
from kiln.cli.fleet_arguments import USUAL, arguments, seconds
from kiln.cli.fleet_site import ANSIBLE, build_options, folder_of, layout_of, site_of
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from kiln.fleet.mission import Mission
    from kiln.fleet.plan import FleetPlan
    from kiln.fleet.playbooks import Site
    from kiln.ledger.fleet import FleetLedger
    from kiln.model.artifact import PackageReport
    from kiln.model.feedstock import Feedstock
    from kiln.model.fleet import FleetRun
    from kiln.model.run import CellRun
    from kiln.pipeline.elsewhere import Elsewhere

__all__ = ["arguments", "run"]

NEEDED = ("ssh", "rsync")


def run(options: argparse.Namespace, root: Path) -> int:
    """Do what was asked for."""
    from kiln import load

    feedstock = load.find(root)
    actions = {"plan": show_plan, "run": run_fleet, "status": show_status, "down": give_back, "sweep": sweep}
    return actions[options.action](options, feedstock)


# The plan


def show_plan(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Print what a run would do."""
    from kiln.fleet import table
    from kiln.ledger.fleet import FleetLedger

    with FleetLedger(layout_of(feedstock).ledger) as ledger:
        planned = planned_for(options, to_build(options, feedstock)[0], ledger)
    print(json.dumps(table.as_json(planned), indent=2) if options.json else table.as_text(planned))
    return 0


def to_build(
    options: argparse.Namespace, feedstock: Feedstock, more: Sequence[str] = ()
) -> tuple[tuple[Elsewhere, ...], tuple[CellRun, ...], tuple[Elsewhere, ...]]:
    """Return the cells that are to be built, those that came home before, and all of them.

    Raises:
        UsageError: when there is nothing to build.
    """
    from kiln.model.run import CellRun, CellState
    from kiln.pipeline import elsewhere

    configs = dict.fromkeys((*cells.wanted(feedstock, options), *more))
    every = elsewhere.wanted(feedstock, tuple(configs), options=build_options(options))
    home = {} if options.rebuild else elsewhere.finished(feedstock, every)
    found = tuple(
        CellRun(
            config=cell.config,
            state=CellState.FOUND,
            group=cell.group,
            reason="came home before",
            packages=home[cell.config].packages,
        )
        for cell in every
        if cell.config in home
    )
    return tuple(cell for cell in every if cell.config not in home), found, every


def planned_for(options: argparse.Namespace, cells: Sequence[Elsewhere], ledger: FleetLedger) -> FleetPlan:
    """Return the plan for cells.

    Raises:
        UsageError: when nothing is to be built, or there is no such machine.
        FleetLimit: when no arrangement stays within the limits.
    """
    from kiln.fleet import plan, works

    if not cells:
        raise UsageError("all of these cells came home before, nothing to build", hint="--rebuild builds them again")
    assumed, history = works.Assumed.read(), ledger.took()
    table = works.flavours(ANSIBLE / "group_vars" / "all" / "flavours.yml")
    types = options.types or [usual(table, options.provider)]
    wanted = [works.Wanted(config=cell.config, group=cell.group, key=cell.inputs.key) for cell in cells]
    cache = [options.cache] if options.cache else []
    flavours = works.offered(table, provider=options.provider, types=[*types, *cache])
    return plan.plan(
        {
            flavour: works.works(wanted, history, cores=flavour.cores, assumed=assumed)
            for flavour in flavours[: len(types)]
        },
        overheads=assumed.overheads,
        bounds=plan.Bounds(
            machines=options.machines,
            cost=options.budget,
            seconds=None if options.time_limit is None else seconds(options.time_limit),
        ),
        cache=flavours[-1] if cache else None,
        spot=options.spot,
        aim=options.aim,
    )


def usual(table: Sequence[Any], provider: str) -> str:
    """Return the type of machine that is meant when none is named."""
    types = [flavour.type for flavour in table if flavour.provider == provider]
    return USUAL if USUAL in types or not types else str(types[0])


# The run


def run_fleet(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Build cells on many machines, and return the exit code of what failed."""
    from kiln import command, files
    from kiln.fleet import run as fleet
    from kiln.ledger.fleet import FleetLedger
    from kiln.report import as_json

    layout = layout_of(feedstock)
    for program in NEEDED:
        command.find(program, env=os.environ)
    with files.locked(layout.lock("fleet")), FleetLedger(layout.ledger) as ledger:
        cells, found, every = to_build(options, feedstock)
        before = fleet.unfinished(ledger.fleets(), provider=options.provider, key=every[0].inputs.shared)
        if before is not None:
            cells, found, every = to_build(options, feedstock, tuple(job.config for job in before.jobs))
            print(f"going on with the fleet run {before.id}", file=sys.stderr)
        if not cells:
            print("all of these cells came home before, nothing to build", file=sys.stderr)
            if before is not None:
                return returned(site_of(options, feedstock, before.id, before.provider), before.id, ledger)
            return 0
        mission, site = prepared(options, feedstock, cells, found, before, ledger)
        watched = view_of(feedstock, every)
        kept = Keeping(feedstock, every)
        with command.termination_as_interrupt(), watched:
            report, errors = fleet.execute(mission, site, ledger=ledger, watcher=watched, keep=kept)
    if options.json:
        print(json.dumps(as_json(report), indent=2))
    return build.exit_code(report, errors)


class Keeping:
    """Puts the packages of cells that came home into the channel."""

    def __init__(self, feedstock: Feedstock, cells: Sequence[Elsewhere]) -> None:
        self._feedstock = feedstock
        self._cells = {cell.config: cell for cell in cells}

    def __call__(self, config: str, packages: Sequence[PackageReport]) -> tuple[PackageReport, ...]:
        """Put packages into the channel, and return them where they lie now."""
        from kiln.pipeline import elsewhere

        return elsewhere.keep(self._feedstock, self._cells[config], packages) if packages else ()


def prepared(
    options: argparse.Namespace,
    feedstock: Feedstock,
    cells: Sequence[Elsewhere],
    found: Sequence[CellRun],
    before: FleetRun | None,
    ledger: FleetLedger,
) -> tuple[Mission, Site]:
    """Return what a run is to do and where it has its things; a run that is gone on with keeps its kind of machine."""
    from kiln.fleet.mission import Mission, cache_of
    from kiln.fleet.works import Assumed

    if before is not None:
        options.types = [before.type]
        options.cache = options.cache or cache_of(before)
    planned = planned_for(options, cells, ledger)
    identity = secrets.token_hex(4) if before is None else before.id
    assumed = Assumed.read()
    mission = Mission(
        id=identity,
        command=shlex.join(("kiln", *sys.argv[1:])),
        flavour=planned.chosen.flavour,
        works=planned.works,
        most=planned.chosen.machines,
        spot=options.spot,
        cache=planned.chosen.cache,
        patient=planned.chosen.patient,
        attempts=options.attempts,
        replacements=options.replacements,
        lease=seconds(options.lease),
        patience=seconds(options.patience),
        budget=options.budget,
        limit=None if options.time_limit is None else seconds(options.time_limit),
        up=assumed.up,
        down=assumed.down,
        key=cells[0].inputs.shared,
        found=tuple(found),
        before=before,
        logs=folder_of(feedstock, identity) / "logs",
    )
    return mission, site_of(options, feedstock, identity, options.provider, mission=mission)


def view_of(feedstock: Feedstock, cells: Sequence[Elsewhere]) -> Any:
    """Return the view of a run on standard error."""
    from kiln import expand
    from kiln.cli.view import view
    from kiln.report import labels

    configs = [cell.config for cell in cells]
    variants = {config: expand.read(feedstock, config).variant for config in configs}
    return view(sys.stderr, os.environ, labels(configs, variants))


# What is left


def show_status(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Print what the ledger knows of runs, or what a provider says that it has."""
    from kiln.fleet import run as fleet
    from kiln.fleet import table
    from kiln.ledger.fleet import FleetLedger

    if options.ask:
        print(fleet.found(site_of(options, feedstock, "look", options.ask)).strip())
        return 0
    with FleetLedger(layout_of(feedstock).ledger) as ledger:
        runs = [run for run in ledger.fleets() if options.run in {None, run.id}]
    if options.run and not runs:
        raise UsageError(f"there is no fleet run {options.run!r} here", hint="kiln fleet status")
    print(json.dumps(table.status_as_json(runs), indent=2) if options.json else table.status(runs))
    return 0


def give_back(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Give back all that runs have."""
    from kiln import command, files
    from kiln.ledger.fleet import FleetLedger

    layout = layout_of(feedstock)
    with files.locked(layout.lock("fleet")), FleetLedger(layout.ledger) as ledger, command.termination_as_interrupt():
        known = {run.id: run.provider for run in ledger.fleets()}
        ids = options.runs or [run.id for run in ledger.fleets() if run.finished is None]
        for each in ids:
            provider = options.provider or known.get(each)
            if provider is None:
                raise UsageError(f"the fleet run {each!r} is not in the ledger", hint="--provider says where it was")
            returned(site_of(options, feedstock, each, provider), each, ledger)
    if not ids:
        print("no fleet run is left open; kiln fleet sweep asks a provider", file=sys.stderr)
    return 0


def returned(site: Site, run: str, ledger: FleetLedger) -> int:
    """Give back all that a run has, and write that down."""
    from kiln.fleet import run as fleet

    fleet.down(site, run)
    ledger.end_fleet(run)
    print(f"{run}: nothing is left", file=sys.stderr)
    return 0


def sweep(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Give back what any run has left."""
    from kiln.fleet import run as fleet

    site = site_of(options, feedstock, "sweep", options.provider)
    fleet.sweep(site, everything=options.all)
    print("nothing is left that should not be", file=sys.stderr)
    return 0
