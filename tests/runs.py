"""Runs to be shown: a matrix of any size, worked through by a few jobs, with what goes wrong on the way."""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.state.results import (
    Artifact,
    ConfigRun,
    ConfigState,
    MatrixReport,
    PackageReport,
    StepReport,
    TestReport,
    TestVerdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BEGAN = 1_790_000_000.0
HOUR = 3600.0
PACKAGES = ("libtensorflow_framework", "libtensorflow_cc", "tensorflow-base", "tensorflow", "tensorflow-cpu")

Variants = dict[str, dict[str, tuple[str, ...]]]


def variants(cudas: Sequence[str], pythons: Sequence[str], levels: Sequence[str] = ("1",)) -> Variants:
    """Return the variants of a matrix, by config, with keys that vary along and keys that do not."""
    result: Variants = {}
    for cuda, level, python in product(cudas, levels, pythons):
        level_in_name = f"microarch_level{level}" if len(levels) > 1 else ""
        config = f"linux_64_cuda_compiler_version{cuda}{level_in_name}python{python}.____cpython"
        result[config] = {
            "cuda_compiler_version": (cuda,),
            "cudnn": ("undefined" if cuda == "None" else "9",),
            "microarch_level": (level,),
            "python": (f"{python}.* *_cpython",),
            "c_compiler": ("gcc",),
        }
    return result


def worked_through(
    matrix: Iterable[str],
    *,
    jobs: int = 2,
    until: float | None = None,
    bad: Mapping[int, ConfigState] | None = None,
    log: Path | None = None,
) -> MatrixReport:
    """Return a run over these entries, as it stands ``until`` some seconds after its beginning, or at its end."""
    slots = [0.0] * jobs
    entries = []
    groups: set[str] = set()
    for number, config in enumerate(matrix):
        group = config.partition("python")[0].rpartition("version")[2]
        start = heapq.heappop(slots)
        cold = group not in groups
        seconds = (3.1 if cold else 0.7 + 0.13 * (number % 5)) * HOUR
        heapq.heappush(slots, start + seconds)
        entry = ConfigRun(config=config, state=ConfigState.WAITING, group=f"cuda{group}", cold=cold, estimate=seconds)
        entries.append(_config(entry, start, seconds, until=until, bad=(bad or {}).get(number), log=log))
        groups.add(group)
    over = all(entry.finished for entry in entries)
    return MatrixReport(
        run=7,
        command="kiln build --all -j 2",
        started=BEGAN,
        finished=BEGAN + max(slots) if over else None,
        machine="builder-3, AMD EPYC 7763",
        cores=32,
        jobs=jobs,
        engine="rattler-build 0.73.0",
        container="Docker 27.3",
        image="quay.io/condaforge/linux-anvil-x86_64:alma9",
        configs=tuple(entries),
    )


def _config(
    config: ConfigRun, start: float, seconds: float, *, until: float | None, bad: ConfigState | None, log: Path | None
) -> ConfigRun:
    """Return a config that waits as it is at a moment, or in the end."""
    if until is not None and start >= until:
        return config
    begun = replace(config, started=BEGAN + start, log=log)
    if until is not None and start + seconds > until:
        return replace(begun, state=ConfigState.RUNNING, peak_memory=9_100_000_000)
    if bad is ConfigState.CACHED:
        return replace(config, state=bad, reason="same inputs as in run 6", packages=_packages(config.config))
    state = bad or ConfigState.DONE
    return replace(
        begun,
        state=state,
        finished=BEGAN + start + seconds,
        peak_memory=31_400_000_000 if config.cold else 24_800_000_000,
        reason=REASONS.get(state, ""),
        steps=(
            StepReport(title="fetch the source", seconds=14.2),
            StepReport(title="compile", seconds=0.9 * seconds, notes=("bazel: 31,207 actions, 212 from the cache",)),
            StepReport(title="test tensorflow", seconds=0.08 * seconds),
        ),
        packages=_packages(config.config) if state is ConfigState.DONE else (),
    )


REASONS = {
    ConfigState.FAILED: "the compile step ended with exit code 1\n  why: ld: cannot find -lcudart_static",
    ConfigState.OUT_OF_MEMORY: "the build was ended by the kernel at 32 GB\n  try: --jobs 1, or more memory",
    ConfigState.DISK_FULL: "the disk became full while writing work/external",
}


def _packages(config: str) -> tuple[PackageReport, ...]:
    return tuple(
        PackageReport(
            artifact=Artifact(
                path=Path(f"/channel/linux-64/{name}-2.21.0-cuda129py310h{number}_200.conda"),
                sha256="0" * 64,
                size=(240_000_000, 180_000_000, 96_000_000, 41_000, 39_000)[number],
                config=config,
                name=name,
                version="2.21.0",
                build_string=f"cuda129py310h1234abc_{number}",
                subdir="linux-64",
            ),
            build_seconds=31.5 + number,
            reused=False,
            tests=TestReport(package=name, verdict=TestVerdict.PASSED, commands=3, install_seconds=4.0, seconds=12.5),
        )
        for number, name in enumerate(PACKAGES)
    )
