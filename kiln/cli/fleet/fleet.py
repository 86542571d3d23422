"""``kiln fleet``: plan, run, inspect and tear down builds on many workers."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.base.errors import UsageError
from kiln.base.text import duration_seconds
from kiln.cli import build
from kiln.cli import options as cli_options
from kiln.cli import output as cli_output
from kiln.cli.fleet import detached, planning, prices, slurm, teardown
from kiln.cli.fleet import site as fleet_site
from kiln.cli.fleet import tests as fleet_tests
from kiln.cli.fleet.arguments import CAPACITY_TIMEOUT, add_arguments, planned_worker_loss_limits
from kiln.cli.fleet.planning import (
    UP_TO_DATE,
    config_resource_needs,
    fleet_plan_of_configs,
    plan_with_job_sizes,
    require_known_machine_types,
    worker_count_limit,
)
from kiln.cli.fleet.site import artifact_layout, playbook_site, run_folder, worker_build_options
from kiln.cli.main import make_pasteable
from kiln.cli.output import run_view_of_configs
from kiln.state.results import ConfigRun, ConfigState

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kiln.fleet.ansible.playbooks import PlaybookSite
    from kiln.fleet.model import FleetRun, Offer
    from kiln.fleet.plan.plan import FleetPlan, WorkerTestPlan
    from kiln.fleet.records import FleetLedger
    from kiln.fleet.run_config import FleetRunConfig
    from kiln.fleet.slurm.site import SlurmSite
    from kiln.recipe.feedstock import Feedstock
    from kiln.state.results import PackageReport
    from kiln.state.store.cache import RemoteConfig

__all__ = ["add_arguments", "run"]

DETACHED = {
    "attach": detached.attach_to_run,
    "logs": detached.show_run_or_config_log,
    "collect": detached.collect_ended_run,
}
BY_KEY = {
    "status": detached.show_detached_run_status,
    "down": detached.tear_down_run_of_key,
}  # with --key


def run(options: argparse.Namespace, root: Path) -> int:
    """Run an action of ``kiln fleet``."""
    from kiln.recipe import feedstock as recipe_feedstock

    if options.action == "prices":  # needs no feedstock
        return prices.run(options)
    if options.action in {"plan", "run", "test"}:
        slurm.check_options(options)
        planning.check_options(options)
        detached.check_options(options)
        fleet_site.check_options(options, os.environ)
    if options.action in DETACHED or (options.action in BY_KEY and options.key is not None):
        return (DETACHED.get(options.action) or BY_KEY[options.action])(options, root)
    feedstock = recipe_feedstock.load(root)
    actions = {
        "plan": show_plan,
        "run": run_fleet,
        "test": fleet_tests.run,
        "status": show_run_status,
        "down": teardown.tear_down_runs,
        "sweep": teardown.sweep_expired_workers,
    }
    return actions[options.action](options, feedstock)


# The plan


def show_plan(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Print the plan of a run."""
    from kiln.fleet.plan import output
    from kiln.fleet.records import FleetLedger

    with FleetLedger(artifact_layout(feedstock).ledger) as ledger:
        selection = select_configs(options, feedstock)
        configs = selection.configs
        stage = fleet_tests.gpu_test_stage(options, feedstock, selection.all, ledger)
        tests = fleet_tests.gpu_test_plan(stage, selection.cached, configs)
        quotas = planning.account_quotas(options, feedstock)
        plan = fleet_plan_of_configs(options, feedstock, configs, ledger, tests, quotas)
    is_slurm = options.provider == slurm.SLURM
    if is_slurm:
        plan = plan_with_job_sizes(plan, config_resource_needs(feedstock, [config.config for config in configs]))
    if options.detach:
        detached.check_credential_expiry(options, plan, begins=False)
    terms = None if is_slurm else planning.run_terms_of_plan(options, plan)
    print(json.dumps(output.plan_as_json(plan, terms), indent=2) if options.json else output.plan_as_text(plan, terms))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfigSelection:
    """The selected configs: those to build, the reports of those that are up to date, and all of them."""

    configs: tuple[RemoteConfig, ...]
    cached: tuple[ConfigRun, ...]
    all: tuple[RemoteConfig, ...]


def select_configs(options: argparse.Namespace, feedstock: Feedstock, more: Sequence[str] = ()) -> FleetConfigSelection:
    """Return the selected configs.

    Raises:
        UsageError: when no config is selected.
    """
    from kiln.run import recipe_checks
    from kiln.state.store import cache

    names = dict.fromkeys((*cli_options.selected_configs(feedstock, options), *more))
    recipe_checks.require_supported_recipe(feedstock, names)  # before workers are provisioned, and paid for
    fleet_site.require_recipe_support(feedstock, names, options)
    configs = cache.remote_configs(feedstock, tuple(names), options=worker_build_options(options))
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


def run_fleet(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Build configs on many workers, and return the exit code of what failed."""
    from kiln.base import files, process, process_table
    from kiln.fleet import run as fleet_run
    from kiln.fleet.records import FleetLedger
    from kiln.fleet.slurm.site import PROGRAMS as SLURM_PROGRAMS
    from kiln.run.report.page import report_as_json

    layout = artifact_layout(feedstock)
    is_slurm = options.provider == slurm.SLURM
    for program in SLURM_PROGRAMS if is_slurm else fleet_tests.PROGRAMS:
        process.find_program(program, env=os.environ)
    if options.detach:
        return start_detached_run(options, feedstock)
    with files.held_lock_file(layout.common_lock_file("fleet")), FleetLedger(layout.ledger) as ledger:
        selection, previous = selection_and_run_to_resume(options, feedstock, ledger)
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
            keep = functools.partial(add_collected_packages, feedstock, configs)
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
    options: argparse.Namespace, feedstock: Feedstock, ledger: FleetLedger
) -> tuple[FleetConfigSelection, FleetRun | None]:
    """Return the selected configs, and the run to resume, whose configs are among them."""
    from kiln.fleet import run as fleet_run
    from kiln.fleet.records import config_of_job

    selection = select_configs(options, feedstock)
    previous = fleet_run.run_to_resume(
        ledger.fleet_runs(), provider=options.provider, key=selection.all[0].inputs.shared
    )
    if previous is None:
        previous = teardown.recover_or_end_unrecorded_runs(options, feedstock, selection.all, ledger)
    if previous is not None:
        selection = select_configs(options, feedstock, tuple(config_of_job(job.config) for job in previous.jobs))
        print(f"resuming the fleet run {previous.id}", file=sys.stderr)
    return selection, previous


def start_detached_run(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Start a run on a controller of its own, once its plan is known to be possible."""
    from kiln.base import files
    from kiln.fleet.records import FleetLedger

    layout = artifact_layout(feedstock)
    with FleetLedger(layout.ledger) as ledger:
        selection = select_configs(options, feedstock)
        if selection.cached:
            stage = fleet_tests.gpu_test_stage(options, feedstock, selection.all, ledger)
            fleet_tests.print_untested_configs_note(stage, selection.cached)
        if not selection.configs:
            print(UP_TO_DATE, file=sys.stderr)
            return 0
        stage = fleet_tests.gpu_test_stage(options, feedstock, selection.configs, ledger)
        tests = fleet_tests.gpu_test_plan(stage, (), selection.configs)
        plan = fleet_plan_of_configs(options, feedstock, selection.configs, ledger, tests)
        planning.run_terms_of_plan(options, plan)
        lock = layout.common_lock_file("fleet-detach")
        with files.held_lock_file(lock):  # of two at once, the second has to see the first
            teardown.require_no_run_of_same_build(options, feedstock, selection.configs, ledger)
            # another run would have a part of these
            quotas = planning.account_quotas(options, feedstock)
            plan = fleet_plan_of_configs(options, feedstock, selection.configs, ledger, tests, quotas)
            print_quota_warnings(plan, planning.offers_by_type(options, plan).values())
            detached.check_credential_expiry(options, plan, begins=True)
            return detached.start_controller_run(options, feedstock, selection.configs)


def print_quota_warnings(plan: FleetPlan, offers: Iterable[Sequence[Offer]]) -> None:
    """Print what to request of the provider for what its quotas keep, or may keep, from a run."""
    from kiln.fleet.plan import plan as plan_plan

    for line in plan_plan.quota_warnings(plan, offers):
        print(line, file=sys.stderr)


def add_collected_packages(
    feedstock: Feedstock, configs: Mapping[str, RemoteConfig], config: str, packages: Sequence[PackageReport]
) -> tuple[PackageReport, ...]:
    """Add the packages of a collected config to the channel, and return them with their paths there."""
    from kiln.state.store import cache

    return cache.add_collected_packages(feedstock, configs[config], packages) if packages else ()


def plan_run_config_and_site(
    options: argparse.Namespace,
    feedstock: Feedstock,
    selection: FleetConfigSelection,
    previous: FleetRun | None,
    ledger: FleetLedger,
    tests: WorkerTestPlan | None = None,
) -> tuple[FleetRunConfig, PlaybookSite | SlurmSite]:
    """Return the configuration and the site of a run; a resumed run keeps its machine type."""
    from kiln.fleet.plan.plan import Assumptions
    from kiln.fleet.run_config import FleetRunConfig, cache_worker_type

    is_slurm = options.provider == slurm.SLURM
    if previous is not None and not is_slurm:
        options.types = list(previous.machine_types)
        options.cache = options.cache or cache_worker_type(previous)
        require_known_machine_types(options, previous)
    # a resumed run has workers already
    quotas = () if previous is not None else planning.account_quotas(options, feedstock)
    plan = fleet_plan_of_configs(options, feedstock, selection.configs, ledger, tests, quotas)
    offers = {} if is_slurm else planning.offers_by_type(options, plan)
    print_quota_warnings(plan, offers.values())
    run_id = detached.new_run_id(os.environ) if previous is None else previous.id
    assumptions, n = Assumptions.read(), len(selection.configs)
    attempts, replacements = planned_worker_loss_limits(options, plan.selection)
    run_config = FleetRunConfig(
        id=run_id,
        command=cli_options.masked_command_line(),
        machine_type=plan.selection.machine_type,
        estimates=plan.estimates,
        max_workers=min(worker_count_limit(options, n), n) if is_slurm else plan.selection.worker_count,
        type_workers={}
        if is_slurm
        else {kind: plan.selection.worker_types.count(kind) for kind in plan.selection.machine_types},
        type_offers=offers,
        capacity_timeout=duration_seconds(options.capacity_timeout or CAPACITY_TIMEOUT),
        lifetime=planning.worker_lifetime(options, plan),
        controller=planning.own_controller_charge(os.environ),
        is_scheduled=is_slurm,
        spot=options.spot,
        cache=plan.selection.cache,
        wait_for_cold=plan.selection.wait_for_cold,
        attempts=attempts,
        is_strict=options.attempts is not None,
        keep_going=options.keep_going,
        replacements=replacements,
        reclaims=replacements,
        lease=duration_seconds(options.lease),
        unreachable_timeout=duration_seconds(options.unreachable_timeout),
        budget=options.budget,
        time_limit=None if options.time_limit is None else duration_seconds(options.time_limit),
        startup=assumptions.startup,
        teardown=assumptions.teardown,
        collect=assumptions.collect,
        packages=assumptions.packages,
        key=selection.configs[0].inputs.shared,
        cached_configs=selection.cached,
        previous_run=previous,
        logs=run_folder(feedstock, run_id) / "logs",
        tests=tests,
    )
    if is_slurm:
        sizes = config_resource_needs(feedstock, [config.config for config in selection.all])
        return run_config, slurm.slurm_run_site(options, feedstock, run_id, sizes)
    return run_config, playbook_site(options, feedstock, run_id, options.provider, run_config=run_config)


# Runs in the ledger, and at a provider


def show_run_status(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Print the fleet runs of the ledger, or the workers that a provider lists."""
    from kiln.fleet import inventory
    from kiln.fleet import run as fleet_run
    from kiln.fleet.plan import output
    from kiln.fleet.records import FleetLedger
    from kiln.state.ledger import database

    if options.ask == slurm.SLURM:
        print(slurm.slurm_jobs_as_json())
        return 0
    if options.ask:
        print(
            json.dumps(
                fleet_run.list_existing_workers(playbook_site(options, feedstock, "look", options.ask)), indent=4
            )
        )
        return 0
    with FleetLedger(artifact_layout(feedstock).ledger) as ledger:
        runs = [run for run in ledger.fleet_runs() if options.run in {None, run.id}]
        if options.run and not runs and detached.is_detached(feedstock, options.run):
            return detached.show_detached_run_status(options, feedstock.root)
        reports = {run.id: ledger.run_report(run.number) for run in runs}
        costs = inventory.recorded_run_costs(runs, reports, time.time())
        backups = database.kept_damaged_files(ledger.path)
    if backups:
        print(make_pasteable(output.ledger_damage_note(backups), feedstock.root), file=sys.stderr)
    if options.run and not runs:
        raise UsageError(f"fleet run {options.run!r} not found in the ledger", hint="kiln fleet status lists all runs")
    text = json.dumps(output.status_as_json(runs, costs), indent=2) if options.json else ""
    print(text or make_pasteable(output.status_as_text(runs, costs), feedstock.root))
    for line in () if options.json or options.run else detached.detached_run_lines(feedstock):
        print(make_pasteable(line, feedstock.root))
    return 0
