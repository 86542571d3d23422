"""``kiln fleet``: cells built on many machines at once, planned, run, looked at, and given back."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.cli import build, cells
from kiln.cli.environment import client, given
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from kiln.fleet.crew import Site
    from kiln.fleet.mission import Mission
    from kiln.fleet.plan import FleetPlan
    from kiln.ledger.fleet import FleetLedger
    from kiln.model.artifact import PackageReport
    from kiln.model.feedstock import Feedstock
    from kiln.model.fleet import FleetRun
    from kiln.model.run import CellRun
    from kiln.pipeline.elsewhere import Elsewhere
    from kiln.pipeline.layout import Layout

HOUSE = Path(__file__).parents[2]
ANSIBLE = HOUSE / "ansible"
PROVIDERS = ("aws", "openstack", "static", "local")
USUAL = "compute-16"
# What a provider's modules read of the environment; it goes to the playbooks' processes, and nowhere else.
CLOUD = re.compile(r"AWS_|OS_|ANSIBLE_VAULT_|PIP_|KILN_FLEET_")
SECRET = re.compile(r"(SECRET|PASSWORD|TOKEN|ACCESS_KEY)")
INDEX = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")  # which hold for a machine too
NEEDED = ("ssh", "rsync")
UNITS = {"": 3600.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln fleet``."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    plan = commands.add_parser("plan", help="which cell on which machine, how long, and for how much; asks nobody")
    run = commands.add_parser("run", help="bring up machines, build on all of them, bring all home, give all back")
    for each in (plan, run):
        _cell_arguments(each)
        _machine_arguments(each)
    _run_arguments(run)
    status = commands.add_parser("status", help="the runs in the ledger, their machines and jobs")
    status.add_argument("run", nargs="?", metavar="RUN", help="one run alone")
    status.add_argument("--ask", metavar="PROVIDER", choices=PROVIDERS, help="ask a provider what it has instead")
    status.add_argument("--json", action="store_true", help="as JSON on standard output")
    down = commands.add_parser("down", help="give back all that a run has, as often as you like")
    down.add_argument("runs", nargs="*", metavar="RUN", help="runs (default: all that were not ended)")
    down.add_argument("--provider", choices=PROVIDERS, help="of a run that is not in the ledger here")
    sweep = commands.add_parser("sweep", help="give back what any run has left, found by tag")
    sweep.add_argument("--provider", choices=PROVIDERS, required=True)
    sweep.add_argument("--all", action="store_true", help="also machines whose time is not over: of runs under way")
    for each in (status, down, sweep, plan, run):
        each.add_argument("--vars", metavar="FILE", type=Path, action="append", default=[], help=VARS)


VARS = "a file of variables for the playbooks, as ansible-playbook -e @FILE; it may be encrypted by Ansible Vault"


def _cell_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="cells by the names of their files in .ci_support")
    parser.add_argument("--filter", metavar="GLOB", help="the cells whose names match")
    parser.add_argument("--all", action="store_true", help="every cell of the matrix, or every one that --filter lets")
    parser.add_argument("--failed", action="store_true", help="the cells that failed or were stopped in the last run")
    parser.add_argument("--rebuild", action="store_true", help="build cells again that came home before")
    parser.add_argument(
        "--container", choices=("docker", "podman", "none"), help="where the machines build, as of kiln build"
    )
    parser.add_argument("--json", action="store_true", help="the plan, or the run's report, as JSON on standard output")
    parser.set_defaults(rehearse=False)


def _machine_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--provider", choices=PROVIDERS, required=True, help="where the machines come from")
    parser.add_argument(
        "--type",
        action="append",
        dest="types",
        metavar="TYPE",
        help=f"kind of machine, by its meaning; several are compared (default: {USUAL} where there is one)",
    )
    parser.add_argument(
        "--cache", metavar="TYPE", help="one machine more, of this type, that holds a cache of Bazel's for all others"
    )
    parser.add_argument("--machines", metavar="N", type=int, default=4, help="machines at most (default: %(default)s)")
    parser.add_argument("--spot", action="store_true", help="machines that the provider may take back, for less")
    parser.add_argument(
        "--aim", choices=("fastest", "cheapest"), default="fastest", help="which arrangement (default: %(default)s)"
    )
    parser.add_argument("--budget", metavar="MONEY", type=float, help="the most it may cost, machines given back")
    parser.add_argument("--time-limit", metavar="TIME", help="the longest it may take, such as 10h or 90min")


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--attempts", metavar="N", type=int, default=3, help="machines for each cell (%(default)s)")
    parser.add_argument(
        "--replacements", metavar="N", type=int, default=3, help="new machines for those that die (%(default)s)"
    )
    parser.add_argument("--lease", metavar="TIME", default="1h", help="how long machines live unheard of (%(default)s)")
    parser.add_argument(
        "--patience", metavar="TIME", default="3min", help="when a silent machine counts as dead (%(default)s)"
    )
    parser.add_argument("--poll", metavar="TIME", default="5s", help="between two looks at a build (%(default)s)")
    parser.add_argument(
        "--image",
        metavar="FILE=TAG",
        action="append",
        default=[],
        help="the root file system of an image that cells build in, for machines that cannot fetch it",
    )


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


def build_options(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the options of ``kiln build`` on the machines."""
    return () if options.container is None else ("--container", options.container)


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


def seconds(text: str) -> float:
    """Return the seconds of a time such as ``10h``, ``90min``, ``45 s``; a bare number is hours.

    Raises:
        UsageError: when it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(h|min|m|s|)", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no time", hint="such as 10h, 90min or 45s")
    return float(match[1]) * UNITS[match[2]]


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


# Where a run has its things


def layout_of(feedstock: Feedstock) -> Layout:
    """Return the folders of a feedstock."""
    from kiln.pipeline.layout import Layout

    return Layout.of(feedstock)


def folder_of(feedstock: Feedstock, run: str) -> Path:
    """Return the folder of a fleet run."""
    return feedstock.artifacts.absolute() / "fleet" / run


def site_of(
    options: argparse.Namespace, feedstock: Feedstock, run: str, provider: str, *, mission: Mission | None = None
) -> Site:
    """Return where a run has its things, the fleet's environment made if need be."""
    from kiln import bootstrap
    from kiln.fleet.crew import Site

    python = bootstrap.fleet(HOUSE, say=lambda line: print(line, file=sys.stderr))
    folder = folder_of(feedstock, run)
    environment = playbook_environment(os.environ, python)
    variables: dict[str, Any] = {
        "kiln_run": run,
        "kiln_provider": provider,
        "kiln_run_dir": str(folder),
        "kiln_project": str(HOUSE),
        "kiln_feedstock": str(feedstock.root.absolute()),
        "kiln_pip": {
            name: f"{{{{ lookup('ansible.builtin.env', '{name}') }}}}"
            for name in INDEX
            if environment.get(name) and "file:" not in environment[name]
        },
    }
    if mission is not None:
        variables |= {
            "kiln_lease": int(mission.lease),
            "kiln_images": [image_of(text) for text in options.image],
            "kiln_environment": told(feedstock),
        }
    return Site(
        folder=folder,
        playbooks=ANSIBLE,
        python=python,
        variables=variables,
        more=tuple(path.absolute() for path in options.vars),
        environment=environment,
        secrets=tuple(value for name, value in environment.items() if SECRET.search(name)),
        options=build_options(options) if mission is not None else (),
        type="" if mission is None else mission.flavour.type,
        cache_type="" if mission is None or mission.cache is None else mission.cache.type,
        spot=mission is not None and mission.spot,
        poll=seconds(options.poll) if mission is not None else 5.0,
    )


def told(feedstock: Feedstock) -> dict[str, str]:
    """Return the variables that a build on a machine sees of this one's: conda-forge's, and none that is secret."""
    from kiln import pipeline

    return {name: text for name, text in given(feedstock, os.environ).items() if name in pipeline.CONTRACT}


def playbook_environment(environment: Mapping[str, str], python: Path) -> dict[str, str]:
    """Return what the playbooks' processes see: the way to the network and the provider, in a locale that is UTF-8."""
    cloud = {name: text for name, text in environment.items() if CLOUD.match(name)}
    path = os.pathsep.join((str(python.parent), environment.get("PATH", os.defpath)))
    return {**client(environment), **cloud, "PATH": path, "LC_ALL": "C.UTF-8"}


def image_of(text: str) -> dict[str, str]:
    """Return an image that machines are given.

    Raises:
        UsageError: when it is not FILE=TAG, or there is no such file.
    """
    file, _, tag = text.rpartition("=")
    if not file or not tag or not Path(file).is_file():
        raise UsageError(f"{text!r} is no image", hint="--image FILE=TAG, with the file that kiln image base has made")
    return {"archive": str(Path(file).absolute()), "tag": tag}


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
