"""``kiln fleet``: plan, run, inspect and tear down builds on many workers."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.base import files, process, process_table
from kiln.base.errors import UsageError
from kiln.base.serialization import to_json
from kiln.base.text import table
from kiln.cli import build
from kiln.cli import options as cli_options
from kiln.cli import output as cli_output
from kiln.cli.fleet import detached, resume, slurm, teardown
from kiln.cli.fleet import tests as fleet_tests
from kiln.cli.fleet.options import parse_options
from kiln.cli.fleet.site import (
    account_quotas,
    artifact_layout,
    playbook_site,
    require_recipe_support,
    run_folder,
    worker_build_variables,
)
from kiln.cli.main import make_pasteable
from kiln.cli.output import run_view_of_configs
from kiln.feedstock import config_file
from kiln.fleet import inventory, run_config
from kiln.fleet import run as fleet_run
from kiln.fleet.options import SLURM
from kiln.fleet.plan import output
from kiln.fleet.plan import plan as plan_plan
from kiln.fleet.plan import prices as fleet_prices
from kiln.fleet.plan import run as fleet_plan
from kiln.fleet.plan.picture import plan_as_html
from kiln.fleet.plan.plan import Assumptions
from kiln.fleet.plan.run import UP_TO_DATE, config_resource_needs
from kiln.fleet.records import FleetLedger, config_of_job
from kiln.fleet.run_config import FleetRunConfig
from kiln.fleet.slurm.site import PROGRAMS as SLURM_PROGRAMS
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe.variants.space import config_labels
from kiln.run.report.page import report_as_json
from kiln.state.ledger import database
from kiln.state.results import ConfigRun, ConfigState
from kiln.state.store import cache

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kiln.fleet.ansible.playbooks import PlaybookSite
    from kiln.fleet.model import FleetRun, Offer
    from kiln.fleet.options import FleetOptions
    from kiln.fleet.plan.plan import FleetPlan, WorkerTestPlan
    from kiln.fleet.slurm.site import SlurmSite
    from kiln.recipe.feedstock import Feedstock
    from kiln.state.results import PackageReport
    from kiln.state.store.cache import RemoteConfig


def run(namespace: argparse.Namespace, root: Path) -> int:
    """Run an action of ``kiln fleet``."""
    environment: Mapping[str, str] = os.environ
    if namespace.action == "resume":
        namespace, environment = resume.command_of_run(recipe_feedstock.load(root), namespace.run, environment)
    options = parse_options(namespace, environment)
    named_by_key = {
        "attach": lambda: detached.attach_to_run(options, root, target=namespace.to, collects=not namespace.no_collect),
        "logs": lambda: detached.show_run_or_config_log(options, root, namespace.config),
        "collect": lambda: detached.collect_ended_run(options, root, target=namespace.to),
        "status": lambda: detached.show_detached_run_status(options, root),
        "down": lambda: detached.tear_down_run_of_key(options, root, namespace.runs),
    }
    if namespace.action == "prices":
        return show_prices(options)
    if options.key is not None or namespace.action in {"attach", "logs", "collect"}:
        return named_by_key[namespace.action]()
    feedstock = recipe_feedstock.load(root)
    if namespace.action in {"plan", "run", "test"}:
        action = {"plan": show_plan, "run": run_fleet, "test": fleet_tests.run_tests}[namespace.action]
        return action(options, feedstock, cli_options.selected_configs(feedstock, namespace))
    if namespace.action == "status":
        return show_run_status(options, feedstock, provider=namespace.ask)
    if namespace.action == "down":
        return teardown.tear_down_runs(options, feedstock, namespace.runs)
    return teardown.sweep(options, feedstock, namespace)


# The plan


def show_plan(options: FleetOptions, feedstock: Feedstock, names: Sequence[str]) -> int:
    """Print the plan of a run."""
    with FleetLedger(artifact_layout(feedstock).ledger) as ledger:
        selection = select_configs(options, feedstock, names)
        configs = selection.configs
        stage = fleet_tests.gpu_test_stage(options, feedstock, selection.all, ledger)
        tests = fleet_tests.gpu_test_plan(stage, selection.cached, configs)
        quotas = account_quotas(options, feedstock)
        plan = fleet_plan.plan_run(feedstock, options, configs, ledger, tests, quotas)
    is_slurm = options.slurm is not None
    if is_slurm:  # what each config needs of its own job is shown; a run leaves it to Slurm, with the time limits
        sizes = config_resource_needs(feedstock, [config.config for config in configs])
        jobs = (dataclasses.replace(job, size=sizes[job.config]) for job in plan.estimates)
        plan = dataclasses.replace(plan, estimates=tuple(jobs))
    if options.detach:
        detached.check_credential_expiry(options, plan, begins=False)
    terms = None if is_slurm else fleet_plan.run_terms_of_plan(options, plan)
    if options.html is not None:
        files.write_text(options.html, plan_as_html(plan))
    if options.json:
        print(json.dumps(output.plan_as_json(plan, terms), indent=2))
    else:
        names = [config.config for config in configs]
        variants = {config.name: config.variant for config in config_file.read_configs(feedstock, names)}
        cli_output.print_folded(output.plan_as_text(plan, terms, config_labels(names, variants)))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfigSelection:
    """The selected configs: those to build, the reports of those that are up to date, and all of them."""

    configs: tuple[RemoteConfig, ...]
    cached: tuple[ConfigRun, ...]
    all: tuple[RemoteConfig, ...]


def select_configs(options: FleetOptions, feedstock: Feedstock, names: Sequence[str]) -> FleetConfigSelection:
    """Return the configs of some names, with the packages of those that are up to date."""
    from kiln.run import recipe_checks  # loads rattler, which a status does not need

    names = tuple(dict.fromkeys(names))
    recipe_checks.require_supported_recipe(feedstock, names)  # before workers are provisioned, and paid for
    require_recipe_support(feedstock, names, options)
    configs = cache.remote_configs(feedstock, names, options=options.build_options)
    finished = {} if options.rebuild else cache.collected_packages(feedstock, configs)
    cached = tuple(
        ConfigRun(
            config=config.config,
            state=ConfigState.CACHED,
            group=config.group,
            reason="up to date",
            packages=finished[config.config],
        )
        for config in configs
        if config.config in finished
    )
    rest = tuple(config for config in configs if config.config not in finished)
    return FleetConfigSelection(configs=rest, cached=cached, all=configs)


# The run


def run_fleet(options: FleetOptions, feedstock: Feedstock, names: Sequence[str]) -> int:
    """Build configs on many workers, and return the exit code of what failed."""
    layout = artifact_layout(feedstock)
    for program in SLURM_PROGRAMS if options.slurm is not None else fleet_tests.PROGRAMS:
        process.find_program(program, env=options.environment)
    if options.detach:
        return start_detached_run(options, feedstock, names)
    with files.held_lock_file(layout.common_lock_file("fleet")), FleetLedger(layout.ledger) as ledger:
        selection, previous = selection_and_run_to_resume(options, feedstock, names, ledger)
        stage = fleet_tests.gpu_test_stage(options, feedstock, selection.all, ledger)
        tests = fleet_tests.gpu_test_plan(stage, selection.cached, selection.configs)
        if not (selection.configs or tests):
            print(UP_TO_DATE, file=sys.stderr)
            fleet_tests.record_cached_as_passed(stage, selection.cached, ledger)
            if previous is not None:
                teardown.tear_down_at_provider(options, feedstock, ledger, previous.id, previous.provider)
            return 0
        previous = fleet_tests.resumable_run_or_tear_down(
            previous,
            builds=bool(selection.configs),
            ledger=ledger,
            tear_down=lambda run: teardown.tear_down_at_provider(options, feedstock, ledger, run.id, run.provider),
        )
        build_stage = None
        if selection.configs:
            run_config, site = plan_run_config_and_site(options, feedstock, selection, previous, ledger, tests)
            configs = {config.config: config for config in selection.all}

            def keep(config: str, packages: Sequence[PackageReport]) -> tuple[PackageReport, ...]:
                """Add the packages of a collected config to the channel, and return them with their paths there."""
                return cache.add_collected_packages(feedstock, configs[config], packages) if packages else ()

            build_stage = functools.partial(fleet_run.execute_fleet_run, run_config, site, keep=keep)
        view = run_view_of_configs(feedstock, [config.config for config in selection.all])
        with process_table.termination_as_interrupt(), cli_output.survive_hangup(), view:
            observer, key = cli_output.terminal_loss_tolerant_view(view), selection.all[0].inputs.shared
            report, errors = fleet_tests.build_and_test(
                stage, build_stage, selection.cached, previous, key=key, ledger=ledger, observer=observer
            )
    if options.json:
        print(json.dumps(report_as_json(report), indent=2))
    return build.print_advice_and_return_exit_code(report, errors)


def selection_and_run_to_resume(
    options: FleetOptions, feedstock: Feedstock, names: Sequence[str], ledger: FleetLedger
) -> tuple[FleetConfigSelection, FleetRun | None]:
    """Return the selected configs, and the run to resume, whose configs are among them."""
    selection = select_configs(options, feedstock, names)
    previous = fleet_run.run_to_resume(
        ledger.fleet_runs(), provider=options.provider, key=selection.all[0].inputs.shared
    )
    if previous is None:
        previous = teardown.recover_or_end_unrecorded_runs(options, feedstock, selection.all, ledger)
    if previous is not None:
        selection = select_configs(options, feedstock, (*names, *(config_of_job(job.config) for job in previous.jobs)))
        print(f"resuming the fleet run {previous.id}", file=sys.stderr)
    return selection, previous


def start_detached_run(options: FleetOptions, feedstock: Feedstock, names: Sequence[str]) -> int:
    """Start a run on a controller of its own, once its plan is known to be possible."""
    layout = artifact_layout(feedstock)
    with FleetLedger(layout.ledger) as ledger:
        selection = select_configs(options, feedstock, names)
        stage = fleet_tests.gpu_test_stage(options, feedstock, selection.all, ledger)
        fleet_tests.print_untested_configs_note(stage, selection.cached)
        if not selection.configs:
            print(UP_TO_DATE, file=sys.stderr)
            return 0
        tests = fleet_tests.gpu_test_plan(stage, (), selection.configs)
        plan = fleet_plan.plan_run(feedstock, options, selection.configs, ledger, tests)
        fleet_plan.run_terms_of_plan(options, plan)
        lock = layout.common_lock_file("fleet-detach")
        with files.held_lock_file(lock):  # of two at once, the second has to see the first
            teardown.require_no_run_of_same_build(options, feedstock, selection.configs, ledger)
            # another run would have a part of these
            quotas = account_quotas(options, feedstock)
            plan = fleet_plan.plan_run(feedstock, options, selection.configs, ledger, tests, quotas)
            print_quota_warnings(plan, fleet_plan.offers_by_type(options, plan).values())
            detached.check_credential_expiry(options, plan, begins=True)
            return detached.start_controller_run(options, feedstock, selection.configs)


def print_quota_warnings(plan: FleetPlan, offers: Iterable[Sequence[Offer]]) -> None:
    """Print what to request of the provider for what its quotas keep, or may keep, from a run."""
    for line in plan_plan.quota_warnings(plan, offers):
        print(line, file=sys.stderr)


def plan_run_config_and_site(
    options: FleetOptions,
    feedstock: Feedstock,
    selection: FleetConfigSelection,
    previous: FleetRun | None,
    ledger: FleetLedger,
    tests: WorkerTestPlan | None = None,
) -> tuple[FleetRunConfig, PlaybookSite | SlurmSite]:
    """Return the configuration and the site of a run; a resumed run keeps its machine type."""
    is_slurm = options.slurm is not None
    if previous is not None and not is_slurm:
        cache = options.cache or run_config.cache_worker_type(previous)
        options = dataclasses.replace(options, types=tuple(previous.machine_types), cache=cache)
        fleet_plan.require_known_machine_types(options, previous)
    # a resumed run has workers already
    quotas = () if previous is not None else account_quotas(options, feedstock)
    plan = fleet_plan.plan_run(feedstock, options, selection.configs, ledger, tests, quotas)
    way = plan.selection
    offers = fleet_plan.offers_by_type(options, plan)
    print_quota_warnings(plan, offers.values())
    run_id, count = run_config.run_id(options, previous), len(selection.configs)
    resume.store_command(options, feedstock, run_id, [config.config for config in selection.all])
    attempts, replacements = options.loss_limits(workers=way.worker_count, worker_seconds=sum(way.worker_seconds))
    config = FleetRunConfig(
        options=options,
        assumptions=Assumptions.read(),
        attempts=attempts,
        replacements=replacements,
        id=run_id,
        command=cli_options.masked_command_line(),
        logs=run_folder(feedstock, run_id) / "logs",
        previous_run=previous,
        estimates=plan.estimates,
        max_workers_by_type={way.machine_type: min(fleet_plan.worker_count_limit(options, count), count)}
        if is_slurm
        else {kind: way.worker_types.count(kind) for kind in way.machine_types},
        type_offers=offers,
        lifetime=fleet_plan.worker_lifetime(options, plan),
        is_scheduled=is_slurm,
        cache=way.cache,
        wait_for_cold=way.wait_for_cold,
        key=selection.configs[0].inputs.shared,
        origin=cli_options.run_origin(worker_build_variables(feedstock, options.environment), options.environment),
        cached_configs=selection.cached,
        tests=tests,
    )
    if is_slurm:
        sizes = config_resource_needs(feedstock, [config.config for config in selection.all])
        return config, slurm.slurm_run_site(options, feedstock, run_id, sizes)
    return config, playbook_site(options, feedstock, run_id, options.provider, run_config=config)


def show_prices(options: FleetOptions) -> int:
    """Show the prices of a provider, or of all, of the machine types that kiln can ask for."""
    names = {(kind.provider, kind.name) for kind in fleet_plan.own_machine_types()}
    prices = sorted(
        (
            price
            for price in fleet_prices.merged_price_table(options.prices)
            if options.provider in {"", price.provider}
            and (price.kind not in {"on-demand", "spot"} or (price.provider, price.name) in names)
        ),
        key=lambda price: price.offer_key,
    )
    if options.json:
        print(json.dumps(to_json(prices), indent=2))
        return 0
    rows = [
        (
            *(price.provider, price.region, price.kind, price.name, f"{price.price:g}"),
            *(price.unit, price.currency, price.date, price.source),
        )
        for price in prices
    ]
    print(table(("provider", "region", "kind", "name", "price", "per", "currency", "date", "source"), rows, right=(4,)))
    return 0


# Runs in the ledger, and at a provider


def show_run_status(options: FleetOptions, feedstock: Feedstock, *, provider: str | None) -> int:
    """Print the fleet runs of the ledger, or the workers that a provider lists."""
    if provider == SLURM:
        print(slurm.slurm_jobs_as_json(options))
        return 0
    if provider:
        site = playbook_site(options, feedstock, "look", provider)
        print(json.dumps(fleet_run.list_existing_workers(site), indent=4))
        return 0
    with FleetLedger(artifact_layout(feedstock).ledger) as ledger:
        runs = [run for run in ledger.fleet_runs() if options.run in {None, run.id}]
        if options.run and not runs and detached.is_detached(feedstock, options.run):
            return detached.show_detached_run_status(options, feedstock.root)
        reports = {run.id: ledger.run_report(run.number) for run in runs}
        forecasts = {name: None if report is None else report.cost for name, report in reports.items()}
        known = {run.id: inventory.recorded_run_cost(run, forecasts[run.id], time.time()) for run in runs}
        costs = {name: cost for name, cost in known.items() if cost is not None}
        backups = database.kept_damaged_files(ledger.path)
    if backups:
        print(make_pasteable(output.ledger_damage_note(backups), feedstock.root), file=sys.stderr)
    if options.run and not runs:
        hint = "kiln fleet status lists all runs"
        if resume.has_command(feedstock, options.run):
            hint = (
                f"its folder is here: kiln fleet resume {options.run} finds its workers, kiln fleet down {options.run}"
            )
            hint += " terminates them"
        raise UsageError(f"fleet run {options.run!r} not found in the ledger", hint=hint)
    text = json.dumps(output.status_as_json(runs, costs), indent=2) if options.json else ""
    print(text or make_pasteable(output.status_as_text(runs, costs), feedstock.root))
    for line in () if options.json or options.run else detached.detached_run_lines(feedstock):
        print(make_pasteable(line, feedstock.root))
    return 0
