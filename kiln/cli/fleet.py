"""``kiln fleet``: plan, run, inspect and tear down builds on many workers."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.cli import (
    build,
    config_selection,
    fleet_account_quota_lookup,
    fleet_controller_type_and_charge,
    fleet_detach_to_controller,
    fleet_detached_runs,
    fleet_detached_status_and_logs,
    fleet_down,
    fleet_gpu_tests,
    fleet_package_tests,
    fleet_prices,
    fleet_remote_executor_options,
    fleet_run_terms_from_options,
    fleet_slurm_options_and_jobs,
    fleet_sweep,
    fleet_unrecorded_run_recovery,
    run_options_from_arguments,
    terminal_loss_tolerance,
)
from kiln.cli.commands_in_hints import make_pasteable
from kiln.cli.fleet_arguments import CAPACITY_TIMEOUT, add_arguments, planned_worker_loss_limits
from kiln.cli.fleet_planning import (
    UP_TO_DATE,
    config_resource_needs,
    fleet_plan_of_configs,
    plan_with_job_sizes,
    require_known_machine_types,
    worker_count_limit,
)
from kiln.cli.fleet_run_folder_and_variables import (
    artifact_layout,
    playbook_site,
    run_folder,
    worker_build_options,
)
from kiln.cli.run_view_choice_and_printing import run_view_of_configs
from kiln.console.text import duration_seconds
from kiln.errors import UsageError
from kiln.model.run import ConfigRun, ConfigState

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kiln.fleet.fleet_run_settings import FleetRunConfig
    from kiln.fleet.plan import FleetPlan, WorkerTestPlan
    from kiln.fleet.playbook_runner import PlaybookSite
    from kiln.fleet.slurm.site import SlurmSite
    from kiln.ledger.fleet import FleetLedger
    from kiln.model.build_results import PackageReport
    from kiln.model.feedstock import Feedstock
    from kiln.model.fleet_run import FleetRun, Offer
    from kiln.store.configs_built_on_workers import RemoteConfig

__all__ = ["add_arguments", "run"]

DETACHED = {
    "attach": fleet_detached_runs.attach_to_run,
    "logs": fleet_detached_status_and_logs.show_run_or_config_log,
    "collect": fleet_detached_runs.collect_ended_run,
}
BY_KEY = {
    "status": fleet_detached_status_and_logs.show_detached_run_status,
    "down": fleet_detached_runs.tear_down_run_of_key,
}  # with --key


def run(options: argparse.Namespace, root: Path) -> int:
    """Run an action of ``kiln fleet``."""
    from kiln import feedstock_folder_check

    if options.action == "prices":  # needs no feedstock
        return fleet_prices.run(options)
    if options.action in {"plan", "run", "test"}:
        fleet_slurm_options_and_jobs.check_options(options)
        fleet_run_terms_from_options.check_options(options)
        fleet_detach_to_controller.check_options(options)
        fleet_remote_executor_options.check_options(options, os.environ)
    if options.action in DETACHED or (options.action in BY_KEY and options.key is not None):
        return (DETACHED.get(options.action) or BY_KEY[options.action])(options, root)
    feedstock = feedstock_folder_check.load(root)
    actions = {
        "plan": show_plan,
        "run": run_fleet,
        "test": fleet_package_tests.run,
        "status": show_run_status,
        "down": fleet_down.tear_down_runs,
        "sweep": fleet_sweep.sweep_expired_workers,
    }
    return actions[options.action](options, feedstock)


# The plan


def show_plan(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Print the plan of a run."""
    from kiln.fleet import plan_status_output
    from kiln.ledger.fleet import FleetLedger

    with FleetLedger(artifact_layout(feedstock).ledger) as ledger:
        selection = select_configs(options, feedstock)
        configs = selection.configs
        stage = fleet_gpu_tests.gpu_test_stage(options, feedstock, selection.all, ledger)
        tests = fleet_gpu_tests.gpu_test_plan(stage, selection.cached, configs)
        quotas = fleet_account_quota_lookup.account_quotas(options, feedstock)
        plan = fleet_plan_of_configs(options, feedstock, configs, ledger, tests, quotas)
    is_slurm = options.provider == fleet_slurm_options_and_jobs.SLURM
    if is_slurm:
        plan = plan_with_job_sizes(plan, config_resource_needs(feedstock, [config.config for config in configs]))
    if options.detach:
        fleet_detach_to_controller.check_credential_expiry(options, plan, begins=False)
    terms = None if is_slurm else fleet_run_terms_from_options.run_terms_of_plan(options, plan)
    print(
        json.dumps(plan_status_output.plan_as_json(plan, terms), indent=2)
        if options.json
        else plan_status_output.plan_as_text(plan, terms)
    )
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
    from kiln.run import recipe_support
    from kiln.store import configs_built_on_workers

    names = dict.fromkeys((*config_selection.selected_configs(feedstock, options), *more))
    recipe_support.require_supported_recipe(feedstock, names)  # before workers are provisioned, and paid for
    fleet_remote_executor_options.require_recipe_support(feedstock, names, options)
    configs = configs_built_on_workers.remote_configs(feedstock, tuple(names), options=worker_build_options(options))
    finished = {} if options.rebuild else configs_built_on_workers.collected_packages(feedstock, configs)
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
    from kiln import files, process_runner, signals
    from kiln.fleet import run_and_removal as fleet
    from kiln.fleet.slurm.client import PROGRAMS as SLURM_PROGRAMS
    from kiln.ledger.fleet import FleetLedger
    from kiln.report.run_report_as_json import report_as_json

    layout = artifact_layout(feedstock)
    is_slurm = options.provider == fleet_slurm_options_and_jobs.SLURM
    for program in SLURM_PROGRAMS if is_slurm else fleet_package_tests.PROGRAMS:
        process_runner.find_program(program, env=os.environ)
    if options.detach:
        return start_detached_run(options, feedstock)
    with files.held_lock_file(layout.common_lock_file("fleet")), FleetLedger(layout.ledger) as ledger:
        selection, previous = selection_and_run_to_resume(options, feedstock, ledger)
        stage = fleet_gpu_tests.gpu_test_stage(options, feedstock, selection.all, ledger)
        tests = fleet_gpu_tests.gpu_test_plan(stage, selection.cached, selection.configs)
        if not (selection.configs or tests):
            print(UP_TO_DATE, file=sys.stderr)
            fleet_gpu_tests.record_cached_as_passed(stage, selection.cached, ledger)
            if previous is not None:
                fleet_down.tear_down_at_provider(options, feedstock, ledger, previous.id, previous.provider)
            return 0
        previous = fleet_gpu_tests.resumable_run_or_tear_down(
            previous,
            builds=bool(selection.configs),
            ledger=ledger,
            tear_down=lambda run: fleet_down.tear_down_at_provider(options, feedstock, ledger, run.id, run.provider),
        )
        build_stage = None
        if selection.configs:
            run_config, site = plan_run_config_and_site(options, feedstock, selection, previous, ledger, tests)
            configs = {config.config: config for config in selection.all}
            keep = functools.partial(add_collected_packages, feedstock, configs)
            build_stage = functools.partial(fleet.execute_fleet_run, run_config, site, keep=keep)
        view = run_view_of_configs(feedstock, [config.config for config in selection.all])
        with signals.termination_as_interrupt(), terminal_loss_tolerance.survive_hangup(), view:
            observer, key = terminal_loss_tolerance.terminal_loss_tolerant_view(view), selection.all[0].inputs.shared
            report, errors = fleet_gpu_tests.build_and_test(
                stage, build_stage, selection.cached, previous, key=key, ledger=ledger, observer=observer
            )
    if options.json:
        print(json.dumps(report_as_json(report), indent=2))
    return build.print_advice_and_return_exit_code(report, errors)


def selection_and_run_to_resume(
    options: argparse.Namespace, feedstock: Feedstock, ledger: FleetLedger
) -> tuple[FleetConfigSelection, FleetRun | None]:
    """Return the selected configs, and the run to resume, whose configs are among them."""
    from kiln.fleet import run_and_removal as fleet
    from kiln.fleet.run_recorders import config_of_job

    selection = select_configs(options, feedstock)
    previous = fleet.run_to_resume(ledger.fleet_runs(), provider=options.provider, key=selection.all[0].inputs.shared)
    if previous is None:
        previous = fleet_unrecorded_run_recovery.recover_or_end_unrecorded_runs(
            options, feedstock, selection.all, ledger
        )
    if previous is not None:
        selection = select_configs(options, feedstock, tuple(config_of_job(job.config) for job in previous.jobs))
        print(f"resuming the fleet run {previous.id}", file=sys.stderr)
    return selection, previous


def start_detached_run(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Start a run on a controller of its own, once its plan is known to be possible."""
    from kiln import files
    from kiln.ledger.fleet import FleetLedger

    layout = artifact_layout(feedstock)
    with FleetLedger(layout.ledger) as ledger:
        selection = select_configs(options, feedstock)
        if selection.cached:
            stage = fleet_gpu_tests.gpu_test_stage(options, feedstock, selection.all, ledger)
            fleet_gpu_tests.print_untested_configs_note(stage, selection.cached)
        if not selection.configs:
            print(UP_TO_DATE, file=sys.stderr)
            return 0
        stage = fleet_gpu_tests.gpu_test_stage(options, feedstock, selection.configs, ledger)
        tests = fleet_gpu_tests.gpu_test_plan(stage, (), selection.configs)
        plan = fleet_plan_of_configs(options, feedstock, selection.configs, ledger, tests)
        fleet_run_terms_from_options.run_terms_of_plan(options, plan)
        lock = layout.common_lock_file("fleet-detach")
        with files.held_lock_file(lock):  # of two at once, the second has to see the first
            fleet_unrecorded_run_recovery.require_no_run_of_same_build(options, feedstock, selection.configs, ledger)
            # another run would have a part of these
            quotas = fleet_account_quota_lookup.account_quotas(options, feedstock)
            plan = fleet_plan_of_configs(options, feedstock, selection.configs, ledger, tests, quotas)
            print_quota_warnings(plan, fleet_run_terms_from_options.offers_by_type(options, plan).values())
            fleet_detach_to_controller.check_credential_expiry(options, plan, begins=True)
            return fleet_detach_to_controller.start_controller_run(options, feedstock, selection.configs)


def print_quota_warnings(plan: FleetPlan, offers: Iterable[Sequence[Offer]]) -> None:
    """Print what to request of the provider for what its quotas keep, or may keep, from a run."""
    from kiln.fleet import quotas

    for line in quotas.quota_warnings(plan, offers):
        print(line, file=sys.stderr)


def add_collected_packages(
    feedstock: Feedstock, configs: Mapping[str, RemoteConfig], config: str, packages: Sequence[PackageReport]
) -> tuple[PackageReport, ...]:
    """Add the packages of a collected config to the channel, and return them with their paths there."""
    from kiln.store import configs_built_on_workers

    return configs_built_on_workers.add_collected_packages(feedstock, configs[config], packages) if packages else ()


def plan_run_config_and_site(
    options: argparse.Namespace,
    feedstock: Feedstock,
    selection: FleetConfigSelection,
    previous: FleetRun | None,
    ledger: FleetLedger,
    tests: WorkerTestPlan | None = None,
) -> tuple[FleetRunConfig, PlaybookSite | SlurmSite]:
    """Return the configuration and the site of a run; a resumed run keeps its machine type."""
    from kiln.fleet.assumptions import Assumptions
    from kiln.fleet.fleet_run_settings import FleetRunConfig, cache_worker_type, recorded_pool_type_and_size

    is_slurm = options.provider == fleet_slurm_options_and_jobs.SLURM
    if previous is not None and not is_slurm:
        options.types = list(previous.machine_types)
        options.cache = options.cache or cache_worker_type(previous)
        if options.pool is None and (pool := recorded_pool_type_and_size(previous)) is not None:
            options.pool_type, options.pool = pool
        require_known_machine_types(options, previous)
    # a resumed run has workers already
    quotas = () if previous is not None else fleet_account_quota_lookup.account_quotas(options, feedstock)
    plan = fleet_plan_of_configs(options, feedstock, selection.configs, ledger, tests, quotas)
    offers = {} if is_slurm else fleet_run_terms_from_options.offers_by_type(options, plan)
    print_quota_warnings(plan, offers.values())
    run_id = fleet_detach_to_controller.new_run_id(os.environ) if previous is None else previous.id
    assumptions, n = Assumptions.read(), len(selection.configs)
    attempts, replacements = planned_worker_loss_limits(options, plan.selection)
    run_config = FleetRunConfig(
        id=run_id,
        command=run_options_from_arguments.masked_command_line(),
        machine_type=plan.selection.machine_type,
        estimates=plan.estimates,
        max_workers=min(worker_count_limit(options, n), n) if is_slurm else plan.selection.worker_count,
        type_workers={}
        if is_slurm
        else {kind: plan.selection.worker_types.count(kind) for kind in plan.selection.machine_types},
        type_offers=offers,
        capacity_timeout=duration_seconds(options.capacity_timeout or CAPACITY_TIMEOUT),
        lifetime=fleet_run_terms_from_options.worker_lifetime(options, plan),
        controller=fleet_controller_type_and_charge.own_controller_charge(os.environ),
        is_scheduled=is_slurm,
        spot=options.spot,
        cache=plan.selection.cache,
        pool=None if plan.selection.pool is None else plan.selection.pool.machine_type,
        pool_workers=0 if plan.selection.pool is None else plan.selection.pool.workers,
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
        return run_config, fleet_slurm_options_and_jobs.slurm_run_site(options, feedstock, run_id, sizes)
    return run_config, playbook_site(options, feedstock, run_id, options.provider, run_config=run_config)


# Runs in the ledger, and at a provider


def show_run_status(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Print the fleet runs of the ledger, or the workers that a provider lists."""
    from kiln.fleet import costs as fleet_costs
    from kiln.fleet import plan_status_output
    from kiln.fleet import run_and_removal as fleet
    from kiln.ledger import damage_repair
    from kiln.ledger.fleet import FleetLedger

    if options.ask == fleet_slurm_options_and_jobs.SLURM:
        print(fleet_slurm_options_and_jobs.slurm_jobs_as_json())
        return 0
    if options.ask:
        print(json.dumps(fleet.list_existing_workers(playbook_site(options, feedstock, "look", options.ask)), indent=4))
        return 0
    with FleetLedger(artifact_layout(feedstock).ledger) as ledger:
        runs = [run for run in ledger.fleet_runs() if options.run in {None, run.id}]
        if options.run and not runs and fleet_detached_runs.is_detached(feedstock, options.run):
            return fleet_detached_status_and_logs.show_detached_run_status(options, feedstock.root)
        reports = {run.id: ledger.run_report(run.number) for run in runs}
        costs = fleet_costs.recorded_run_costs(runs, reports, time.time())
        backups = damage_repair.kept_damaged_files(ledger.path)
    if backups:
        print(make_pasteable(plan_status_output.ledger_damage_note(backups), feedstock.root), file=sys.stderr)
    if options.run and not runs:
        raise UsageError(f"fleet run {options.run!r} not found in the ledger", hint="kiln fleet status lists all runs")
    text = json.dumps(plan_status_output.status_as_json(runs, costs), indent=2) if options.json else ""
    print(text or make_pasteable(plan_status_output.status_as_text(runs, costs), feedstock.root))
    for line in () if options.json or options.run else fleet_detached_status_and_logs.detached_run_lines(feedstock):
        print(make_pasteable(line, feedstock.root))
    return 0
