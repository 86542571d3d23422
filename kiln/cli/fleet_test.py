"""``kiln fleet test``: test built packages on a worker, such as one with a GPU; and what that takes, for the plan."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import sys
import time
from typing import TYPE_CHECKING, Any

from kiln.cli import config_selection
from kiln.cli.fleet_ansible_settings import artifact_layout, keep_region, site_of, worker_variables
from kiln.cli.fleet_arguments import seconds
from kiln.cli.fleet_plan_inputs import default_types, priced_offers, sizes_by_name
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from kiln.fleet.worker_test_plan import WorkerTestPlan
    from kiln.fleet.worker_tests import ConfigTestResult, WorkerTestInputs
    from kiln.model.feedstock import Feedstock
    from kiln.model.fleet import FleetRun, MachineType
    from kiln.model.run import RunCost


def run(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Test the packages of the selected configs on a worker; return the exit code of what failed."""
    from kiln import files, process_runner, signals
    from kiln.errors import BuildFailed
    from kiln.fleet import costs, worker_tests
    from kiln.ledger.fleet import FleetLedger

    layout = artifact_layout(feedstock)
    with files.locked(layout.lock("fleet")), FleetLedger(layout.ledger) as ledger:
        tests = prepare(options, feedstock)
        for program in ("ssh", "ssh-keygen", "rsync"):
            process_runner.find(program, env=os.environ)
        with signals.termination_as_interrupt():
            results = worker_tests.execute(tests, ledger, lambda line: print(line, file=sys.stderr))
        fleet = ledger.fleet(tests.run)
    cost = None if fleet is None else costs.of_run(fleet, None, time.time())
    print(
        json.dumps(results_as_json(tests.run, results, fleet, cost), indent=2)
        if options.json
        else result_table(results, cost)
    )
    codes = {result.exit_code for result in results} - {0}
    return 0 if not codes else codes.pop() if len(codes) == 1 else BuildFailed.exit_code


def prepare(options: argparse.Namespace, feedstock: Feedstock) -> WorkerTestInputs:
    """Return what is tested and where; nothing is requested yet.

    Raises:
        UsageError: when the packages of a config are not built, or no machine type has a GPU.
    """
    from kiln.fleet.worker_tests import WorkerTestInputs
    from kiln.release import built_packages

    kind = machine_type(options)
    names = tested_configs(feedstock, config_selection.selected_configs(feedstock, options), gpu=options.gpu)
    packages = built_packages.of_configs(feedstock, names)
    if absent := [name for name in names if name not in packages]:
        raise UsageError(
            f"the packages of {absent[0]} are not built"
            + (f", nor those of {len(absent) - 1} others" * (len(absent) > 1)),
            why="build_artifacts has none from its last runs, unchanged",
            hint="kiln fleet run builds them; name the configs that are built, or narrow them with --filter",
        )
    run_id = secrets.token_hex(4)
    site = site_of(options, feedstock, run_id, options.provider)
    keep_region(options, site.folder, options.provider)
    variables = {"kiln_lease": int(seconds(options.lease)), "kiln_environment": worker_variables(feedstock)}
    sizes = sizes_by_name(feedstock, names)
    return WorkerTestInputs(
        run=run_id,
        site=dataclasses.replace(site, variables={**site.variables, **variables}),
        machine_type=kind,
        channel=artifact_layout(feedstock).root.absolute(),
        packages={name: tuple(path.absolute() for path in packages[name]) for name in names},
        limits={name: size.time_limit for name, size in sizes.items() if size.time_limit},
        gpu=options.gpu,
        spot=options.spot,
        lease=seconds(options.lease),
    )


def tested_configs(feedstock: Feedstock, names: Sequence[str], *, gpu: bool) -> tuple[str, ...]:
    """Return the configs to test: with ``gpu`` those for CUDA, with a note on the others.

    Raises:
        UsageError: when none is for CUDA.
    """
    from kiln import expand
    from kiln.variants.cuda_version import cuda_of

    if not gpu:
        return tuple(names)
    configs = [entry.name for entry in expand.read_all(feedstock, names) if cuda_of(entry) is not None]
    if not configs:
        raise UsageError(
            "none of the selected configs is for CUDA",
            hint="kiln matrix lists the configs; 'kiln test' tests the others",
        )
    if len(configs) < len(names):
        print(f"{len(names) - len(configs)} configs are not for CUDA, and need no GPU", file=sys.stderr)
    return tuple(configs)


def machine_type(options: argparse.Namespace) -> MachineType:
    """Return the machine type of the worker: the named one, or the cheapest with a GPU.

    A host of unknown sizes is accepted here: what it has is measured when it is claimed.

    Raises:
        UsageError: when it, or none of the provider's, has a GPU.
    """
    offers = priced_offers(options, options.types or [])
    if not options.gpu:
        return offers[0] if options.types else default_types(offers, [])[0]
    having = [kind for kind in offers if kind.gpus or (kind.provider == "static" and not kind.cores)]
    having.sort(key=lambda kind: (not kind.gpus, not kind.is_priced, kind.price(spot=False)))
    if not having:
        what = f"{options.types[0]} has no GPU" if options.types else f"no machine type of {options.provider} has a GPU"
        hint = (
            'kiln_static_hosts gives a host\'s GPUs as "gpus": 1' if options.provider == "static" else "--provider aws"
        )
        raise UsageError(what, hint=hint)
    return having[0]


def plan_of(options: argparse.Namespace, feedstock: Feedstock, names: Sequence[str]) -> WorkerTestPlan:
    """Return the plan of the tests of configs on a GPU."""
    from argparse import Namespace

    from kiln.fleet.assumptions import Assumptions
    from kiln.fleet.worker_test_plan import WorkerTestPlan

    configs = tested_configs(feedstock, names, gpu=True)
    types = [options.gpu_type] if options.gpu_type else None
    kind = machine_type(Namespace(**{**vars(options), "gpu": True, "types": types}))
    return WorkerTestPlan.of(configs, kind, spot=options.spot, assumptions=Assumptions.read())


def results_as_json(
    run_id: str, results: Sequence[ConfigTestResult], fleet: FleetRun | None, cost: RunCost | None
) -> dict[str, Any]:
    """Return the results as plain JSON values, with the run's id and its cost, as in ``kiln fleet status --json``."""
    from kiln.fleet.plan_status_output import run_cost_as_json

    shown = None if fleet is None else run_cost_as_json(fleet, cost)
    return {"run": run_id, "cost": shown, "configs": [dataclasses.asdict(result) for result in results]}


def result_table(results: Sequence[ConfigTestResult], cost: RunCost | None) -> str:
    """Return the results as a table: a line for each config, with its packages, tests and GPU; then the cost."""
    from kiln.console.text import cost_text, duration
    from kiln.console.text import table as aligned

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
    text = aligned(("config", "", "packages", "tests", "time", "GPU, or reason"), rows, right=(2, 3, 4))
    return text if cost is None else f"{text}\n\ncost {cost_text(cost)}"
