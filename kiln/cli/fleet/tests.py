"""``kiln fleet test`` and ``run --gpu-tests``: built packages tested on a worker, such as one with a GPU."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kiln import __version__
from kiln.base import files, process, process_table
from kiln.base.errors import BuildFailed, FleetLimit, UsageError
from kiln.base.text import count_text, duration, table
from kiln.cli import options as cli_options
from kiln.cli import output
from kiln.cli.fleet import resume
from kiln.cli.fleet.site import (
    artifact_layout,
    playbook_site,
    run_folder,
)
from kiln.cli.output import run_view_of_configs
from kiln.feedstock import config_file
from kiln.fleet import inventory, run_config, worker_policies
from kiln.fleet import tests as fleet_tests
from kiln.fleet.model import GONE, FleetRun, Offer
from kiln.fleet.plan.output import run_cost_as_json
from kiln.fleet.plan.plan import Assumptions, WorkerTestPlan
from kiln.fleet.plan.prices import require_price
from kiln.fleet.plan.run import config_resource_needs, default_machine_types, priced_machine_types
from kiln.fleet.records import BuildBeforeTestsRecorder, FleetLedger, RunRecorder
from kiln.fleet.run_config import FleetRunConfig
from kiln.fleet.tests import PackagesToTest, WorkerTestInputs
from kiln.recipe.variants.files import cuda_version_of_config
from kiln.run.report.text import cost_text
from kiln.state.results import GOOD, ConfigRun, MatrixReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kiln.base.errors import KilnError
    from kiln.fleet.model import MachineType
    from kiln.fleet.options import FleetOptions
    from kiln.fleet.tests import ConfigTestResult
    from kiln.recipe.feedstock import Feedstock
    from kiln.state.results import RunCost, RunObserver
    from kiln.state.store.cache import RemoteConfig

    # The builds of a run; see `kiln.fleet.run.execute_fleet_run`.
    BuildStage: TypeAlias = Callable[[RunRecorder], tuple[MatrixReport, Mapping[str, KilnError]]]


PROGRAMS = ("ssh", "ssh-keygen", "rsync")  # that a run with workers needs here


def run_tests(options: FleetOptions, feedstock: Feedstock, names: Sequence[str]) -> int:
    """Test the packages of configs on a worker; return the exit code of what failed."""
    layout = artifact_layout(feedstock)
    with files.held_lock_file(layout.common_lock_file("fleet")), FleetLedger(layout.ledger) as ledger:
        tests = worker_test_inputs(options, feedstock, names, ledger)
        for program in PROGRAMS:
            process.find_program(program, env=options.environment)
        view = run_view_of_configs(feedstock, tuple(tests.tested.packages))
        with process_table.termination_as_interrupt(), output.survive_hangup(), view:
            report, errors = fleet_tests.run_tests_on_worker(tests, ledger, output.terminal_loss_tolerant_view(view))
        fleet = ledger.fleet_run(tests.run_config.id)
    results = fleet_tests.results_of_all_configs(tests, report, errors)
    cost = None if fleet is None else inventory.recorded_run_cost(fleet, None, time.time())
    print(
        json.dumps(results_of_tests_as_json(tests.run_config.id, results, fleet, cost), indent=2)
        if options.json
        else table_of_test_results(results, cost)
    )
    codes = {result.exit_code for result in results} - {0}
    return 0 if not codes else codes.pop() if len(codes) == 1 else BuildFailed.exit_code


def worker_test_inputs(
    options: FleetOptions, feedstock: Feedstock, selected: Sequence[str], ledger: FleetLedger
) -> WorkerTestInputs:
    """Return what is tested and where; nothing is requested yet. Tests that were killed are resumed."""
    from kiln.publish import release  # loads rattler, which no other action needs

    offers = worker_offers(options, worker_machine_types(options))
    names = configs_to_test(feedstock, selected, gpu=options.gpu)
    packages = release.latest_packages_of_configs(feedstock, names)
    if absent := [name for name in names if name not in packages]:
        raise UsageError(
            f"the packages of {absent[0]} are not built"
            + (f", nor those of {len(absent) - 1} others" * (len(absent) > 1)),
            why="build_artifacts has none from its last runs, unchanged",
            hint="kiln fleet run builds them; name the configs that are built, or narrow them with --filter",
        )
    plan = WorkerTestPlan.plan_for_configs(names, offers[0].machine_type, spot=options.spot)
    if options.cost_limit is not None and plan.cost > options.cost_limit:
        limit = f"{options.cost_limit:.2f} {plan.machine_type.currency}"
        raise FleetLimit(
            f"the tests would cost {plan.cost:.2f}, more than the limit of {limit}", hint="raise --cost-limit"
        )
    runs = ledger.fleet_runs()  # of which one whose process was killed is resumed, on workers of the same provider
    open_tests = (run for run in runs if run.finished is None and run.key == fleet_tests.ALONE)
    previous = next((run for run in open_tests if run.provider == options.provider), None)
    if previous is not None:
        print(f"resuming the tests {previous.id}", file=sys.stderr)
    passed = fleet_tests.passed_configs(() if previous is None else (previous,))
    return inputs_of_tests(
        options, feedstock, packages, offers, gpu=options.gpu, previous=previous, passed=passed, key=fleet_tests.ALONE
    )


def inputs_of_tests(
    options: FleetOptions,
    feedstock: Feedstock,
    packages: Mapping[str, Sequence[Path]],
    offers: Sequence[Offer],
    *,
    gpu: bool,
    previous: FleetRun | None,
    passed: Iterable[tuple[str, str]] = (),
    key: str,
    report: MatrixReport | None = None,
) -> WorkerTestInputs:
    """Return the tests of packages: one worker gets the jobs that have not ``passed`` one by one.

    ``key`` is that of the run whose packages are tested, and ``report`` its report.
    """
    sizes = config_resource_needs(feedstock, tuple(packages))
    tested = PackagesToTest(
        channel=artifact_layout(feedstock).root.absolute(),
        packages={name: tuple(path.absolute() for path in paths) for name, paths in packages.items()},
        limits={name: size.time_limit for name, size in sizes.items() if size.time_limit},
        gpu=gpu,
    )
    run_id, kind, assumptions = run_config.run_id(options, previous), offers[0].machine_type, Assumptions.read()
    resume.store_command(options, feedstock, run_id, tested.packages)
    plan = WorkerTestPlan.plan_for_configs(tuple(packages), kind, spot=options.spot)
    attempts, replacements = options.loss_limits(workers=1, worker_seconds=plan.seconds)
    config = FleetRunConfig(
        id=run_id,
        command=cli_options.masked_command_line(),
        options=options,
        assumptions=dataclasses.replace(assumptions, collect=0.0, packages=0.0),
        attempts=attempts,
        replacements=replacements,
        logs=run_folder(feedstock, run_id) / "logs",
        previous_run=previous,
        estimates=tuple(fleet_tests.jobs_for_tests(tested, seconds=assumptions.gpu_test, passed=passed)),
        max_workers_by_type={kind: 1},
        type_offers={kind: tuple(offers)},
        key=key,
        prefix=fleet_tests.PREFIX,
    )
    if report is not None and not report.run:
        report = dataclasses.replace(report, command=config.command, container=f"fleet {run_id}")
    site = playbook_site(options, feedstock, run_id, options.provider, run_config=config, builds=False)
    return WorkerTestInputs(run_config=config, site=site, tested=tested, report=report)


def configs_to_test(feedstock: Feedstock, names: Sequence[str], *, gpu: bool) -> tuple[str, ...]:
    """Return the configs to test: with ``gpu`` those for CUDA, with a note on the others."""
    if not gpu:
        return tuple(names)
    configs = [
        entry.name for entry in config_file.read_configs(feedstock, names) if cuda_version_of_config(entry) is not None
    ]
    if not configs:
        raise UsageError(
            "none of the selected configs is for CUDA",
            hint="kiln matrix lists the configs; 'kiln test' tests the others",
        )
    if others := len(names) - len(configs):
        text = "1 config is not for CUDA, and needs" if others == 1 else f"{others} configs are not for CUDA, and need"
        print(f"{text} no GPU", file=sys.stderr)
    return tuple(configs)


def worker_machine_types(options: FleetOptions) -> list[MachineType]:
    """Return the machine types of the worker: the named ones in their order, or the cheapest with a GPU.

    A host of unknown sizes is accepted here: what it has is measured when it is claimed.
    """
    offers = priced_machine_types(options, options.types)
    if not options.gpu:
        return offers if options.types else default_machine_types(offers, [])[:1]
    having = [kind for kind in offers if kind.gpus or (kind.provider == "static" and not kind.cores)]
    lacking = [kind for kind in offers if kind not in having]
    if not having or (options.types and lacking):
        what = f"{lacking[0].type} has no GPU" if options.types else f"no machine type of {options.provider} has a GPU"
        hint = (
            'kiln_static_hosts gives a host\'s GPUs as "gpus": 1' if options.provider == "static" else "--provider aws"
        )
        raise UsageError(what, hint=hint)
    if options.types:
        return having
    return [min(having, key=lambda kind: (not kind.gpus, not kind.is_priced, kind.hourly_price(spot=False)))]


def worker_offers(options: FleetOptions, kinds: Sequence[MachineType]) -> tuple[Offer, ...]:
    """Return the offers by which the worker is requested: the first type in all zones, then the others."""
    on_demand = [word for word in options.fallbacks if word == worker_policies.ON_DEMAND][:1]
    offers = worker_policies.offers_in_request_order(
        kinds[0], [*kinds[1:], *on_demand], zones=options.zones, spot=options.spot
    )
    for offer in offers:
        require_price(offer.machine_type, "" if options.cost_limit is None else "--cost-limit", spot=offer.spot)
    return offers


def gpu_worker_offers(options: FleetOptions) -> tuple[Offer, ...]:
    """Return the offers of the worker of ``--gpu-tests``: those of --gpu-type, or of the cheapest type with a GPU."""
    return worker_offers(options, worker_machine_types(dataclasses.replace(options, gpu=True, types=options.gpu_types)))


def results_of_tests_as_json(
    run_id: str, results: Sequence[ConfigTestResult], fleet: FleetRun | None, cost: RunCost | None
) -> dict[str, Any]:
    """Return the results as plain JSON values, with the run's id and its cost, as in ``kiln fleet status --json``."""
    shown = None if fleet is None else run_cost_as_json(fleet, cost)
    return {"run": run_id, "cost": shown, "configs": [dataclasses.asdict(result) for result in results]}


def table_of_test_results(results: Sequence[ConfigTestResult], cost: RunCost | None) -> str:
    """Return the results as a table: a line for each config, with its packages, tests and GPU; then the cost."""
    rows = [
        (
            result.config,
            "passed" if result.exit_code == 0 else "failed",
            f"{len(result.reports)}" if result.reports else "",
            f"{sum(report['tests'] for report in result.reports)}" if result.reports else "",
            duration(result.seconds),
            "; ".join(dict.fromkeys(gpu for report in result.reports for gpu in report["gpus"]))
            or result.reason.strip().partition("\n")[0],
        )
        for result in results
    ]
    text = table(("config", "", "packages", "tests", "time", "GPU, or reason"), rows, right=(2, 3, 4))
    return text if cost is None else f"{text}\n\ncost {cost_text(cost)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTestStage:
    """The tests of a run: ``configs`` are those for CUDA, ``offers`` those by which the worker is requested.

    ``passed`` are configs that have passed their tests before, each with the hash over what was tested.
    """

    options: FleetOptions
    feedstock: Feedstock
    configs: tuple[str, ...]
    offers: tuple[Offer, ...]
    passed: frozenset[tuple[str, str]]

    def untested_packages(self, entries: Iterable[ConfigRun]) -> dict[str, tuple[Path, ...]]:
        """Return the packages of configs that are built and have not passed their tests."""
        packages = {
            entry.config: tuple(item.artifact.path for item in entry.packages if not item.artifact.is_wheel)
            for entry in entries
            if entry.config in self.configs and entry.state in GOOD
        }
        tested = PackagesToTest(channel=Path(), packages=packages, gpu=True)
        return {
            config: paths
            for config, paths in packages.items()
            if paths and (config, tested.inputs_hash(config)) not in self.passed
        }

    def execute(
        self, report: MatrixReport, previous: FleetRun | None, *, key: str, ledger: FleetLedger, observer: RunObserver
    ) -> tuple[MatrixReport, Mapping[str, KilnError]]:
        """Test what a run has built; return its report with the configs as their tests make them."""
        packages = self.untested_packages(report.configs)
        options, feedstock, offers = self.options, self.feedstock, self.offers
        tests = inputs_of_tests(
            options, feedstock, packages, offers, gpu=True, previous=previous, key=key, report=report
        )
        return fleet_tests.run_tests_on_worker(tests, ledger, observer)


def gpu_test_stage(
    options: FleetOptions, feedstock: Feedstock, configs: Sequence[RemoteConfig], ledger: FleetLedger
) -> GpuTestStage:
    """Return the tests of a run of configs, of none without ``--gpu-tests``."""
    offers = gpu_worker_offers(options) if options.gpu_tests else ()
    names = configs_to_test(feedstock, [config.config for config in configs], gpu=True) if options.gpu_tests else ()
    return GpuTestStage(
        options=options,
        feedstock=feedstock,
        configs=names,
        offers=offers,
        passed=frozenset(fleet_tests.passed_configs(ledger.fleet_runs())),
    )


def gpu_test_plan(
    stage: GpuTestStage, cached: Iterable[ConfigRun], configs: Iterable[RemoteConfig]
) -> WorkerTestPlan | None:
    """Return the plan of the tests of ``cached`` configs, and of those to build; None without any."""
    names = [*stage.untested_packages(cached), *(config.config for config in configs if config.config in stage.configs)]
    if not names:
        return None
    return WorkerTestPlan.plan_for_configs(names, stage.offers[0].machine_type, spot=stage.options.spot)


def print_untested_configs_note(stage: GpuTestStage, cached: Iterable[ConfigRun]) -> None:
    """Note which configs a detached run leaves untested: those that were built before, whose packages are here."""
    if names := tuple(stage.untested_packages(cached)):
        what = f"{count_text(len(names), 'config')} built before stay untested, such as {names[0]}"
        print(f"{what}; the same command without --detach tests them", file=sys.stderr)


def report_of_cached_configs(cached: Sequence[ConfigRun]) -> MatrixReport:
    """Return the report of a run that builds nothing, and has not begun."""
    return MatrixReport(
        run=0,
        command="",
        started=time.time(),
        finished=None,
        machine="",
        cores=0,
        jobs=1,
        engine="rattler-build",
        container="",
        kiln_version=__version__,
        configs=tuple(cached),
    )


def record_cached_as_passed(stage: GpuTestStage, cached: Sequence[ConfigRun], ledger: FleetLedger) -> None:
    """Record that configs are up to date which the last run left untested, and which have passed since."""
    report = ledger.run_report() if stage.configs else None
    names = {entry.config for entry in cached}
    if report is None or all(entry.state in GOOD for entry in report.configs if entry.config in names):
        return
    command = cli_options.masked_command_line()
    ledger.end_run(ledger.begin_run(dataclasses.replace(report_of_cached_configs(cached), command=command)))


def resumable_run_or_tear_down(
    previous: FleetRun | None, *, builds: bool, ledger: FleetLedger, tear_down: Callable[[FleetRun], None]
) -> FleetRun | None:
    """Return the run to resume: one that has no workers of another stage, and whose machine types are those to use."""
    if previous is None:
        return None
    alive = [worker.name for worker in previous.workers if worker.state not in GONE]
    if any(fleet_tests.is_test_worker(name) == builds for name in alive):
        tear_down(previous)
        previous = ledger.fleet_run(previous.id) or previous
    has_only_tested = all(fleet_tests.is_test_worker(worker.name) for worker in previous.workers)
    if builds and previous.workers and has_only_tested:
        if previous.finished is None:
            tear_down(previous)
        return None
    return previous


def build_and_test(
    stage: GpuTestStage,
    build: BuildStage | None,
    cached: Sequence[ConfigRun],
    previous: FleetRun | None,
    *,
    key: str,
    ledger: FleetLedger,
    observer: RunObserver,
) -> tuple[MatrixReport, Mapping[str, KilnError]]:
    """Build, unless all configs are ``cached``, then test; return the report of both, and the errors of configs."""
    if build is None:
        return stage.execute(report_of_cached_configs(cached), previous, key=key, ledger=ledger, observer=observer)
    passed = {entry.config for entry in cached} - stage.untested_packages(cached).keys()
    recorder = BuildBeforeTestsRecorder(ledger, observer, set(stage.configs) - passed)
    try:
        report, errors = build(recorder)
        packages = stage.untested_packages(report.configs)
        recorder.mark_earlier_tested_configs_done(packages)
    except BaseException:
        recorder.end_run_without_tests()
        raise
    if not packages:
        recorder.end_run_without_tests()
        return report, errors
    run = ledger.fleet_run(report.container.removeprefix("fleet "))
    report, test_errors = stage.execute(report, run, key=key, ledger=ledger, observer=observer)
    return report, {**errors, **test_errors}
