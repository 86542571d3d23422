"""What a machine is good for: the newest TensorFlow run and built on it, and which CUDAs run there."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kiln.compat import judge, lines, tables
from kiln.compat.combination import Combination

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.compat.answer import Answer, Verdict
    from kiln.compat.probe import MachineFacts


def answers(facts: MachineFacts) -> dict[str, Answer]:
    """Return what is to be said of running, and of building on the host, the newest TensorFlow in the tables."""
    newest = max(tables.table("tensorflow"), key=lambda row: lines.numbers(row["tf"]))
    running = facts.running()
    cuda = newest["cuda"] if running.gpus or running.driver else None
    found = {"running": judge(dataclasses.replace(running, tf=newest["tf"], cuda=cuda))}
    building = facts.building()
    if building.bazel or building.host:
        found["building"] = judge(dataclasses.replace(building, tf=newest["tf"], cuda=newest["cuda"]))
    return found


def cudas(facts: MachineFacts) -> dict[str, Verdict]:
    """Return for every CUDA how it runs with this machine's driver and GPUs, newest first; nothing without a driver."""
    running = facts.running()
    if running.driver is None:
        return {}
    machine = Combination(driver=running.driver, loaded=running.loaded, gpus=running.gpus)
    return {cuda: judge(dataclasses.replace(machine, cuda=cuda), suggest=False).verdict for cuda in tables.cuda_lines()}


def ranges(found: Mapping[str, Verdict]) -> dict[str, str]:
    """Return verdicts as ranges for people: ``works`` is ``12.9 to 12.0, 11.8``."""
    runs: list[tuple[Verdict, list[str]]] = []
    for cuda, verdict in found.items():
        if not runs or runs[-1][0] is not verdict:
            runs.append((verdict, []))
        runs[-1][1].append(cuda)
    told: dict[str, list[str]] = {}
    for verdict, cudas_of in runs:
        text = cudas_of[0] if len(cudas_of) == 1 else f"{cudas_of[-1]} to {cudas_of[0]}"
        told.setdefault(verdict.value, []).append(text)
    return {verdict: ", ".join(texts) for verdict, texts in told.items()}
