"""The capabilities of a machine: running and building the newest TensorFlow, and the CUDAs that run there."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from kiln.compat import tables
from kiln.compat.combination import Combination
from kiln.compat.combination_verdict import judge_combination
from kiln.compat.version_ranges import version_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.compat.machine_facts import MachineFacts
    from kiln.compat.results import DoctorResult, Verdict


def newest_tensorflow_results(facts: MachineFacts) -> dict[str, DoctorResult]:
    """Return the results for running, and for building on the host, the newest TensorFlow in the tables."""
    newest = max(tables.table_rows("tensorflow"), key=lambda row: version_numbers(row["tf"]))
    running = facts.runtime_combination()
    cuda = newest["cuda"] if running.gpus or running.driver else None
    results = {"running": judge_combination(dataclasses.replace(running, tf=newest["tf"], cuda=cuda))}
    building = facts.build_combination()
    if building.bazel or building.host:
        results["building"] = judge_combination(dataclasses.replace(building, tf=newest["tf"], cuda=newest["cuda"]))
    return results


def cuda_verdicts(facts: MachineFacts) -> dict[str, Verdict]:
    """Return the verdict on every CUDA with this machine's driver and GPUs, newest first; none without a driver."""
    running = facts.runtime_combination()
    if running.driver is None:
        return {}
    machine = Combination(driver=running.driver, loaded=running.loaded, gpus=running.gpus)
    return {
        cuda: judge_combination(dataclasses.replace(machine, cuda=cuda), suggest=False).verdict
        for cuda in tables.cuda_minor_versions()
    }


def cuda_ranges_by_verdict(verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    """Return verdicts as ranges: ``works`` is ``12.9 to 12.0, 11.8``."""
    texts: dict[str, list[str]] = {}
    for verdict, run in itertools.groupby(verdicts, key=verdicts.__getitem__):
        cudas = list(run)
        text = cudas[0] if len(cudas) == 1 else f"{cudas[-1]} to {cudas[0]}"
        texts.setdefault(verdict.value, []).append(text)
    return {verdict: ", ".join(parts) for verdict, parts in texts.items()}
