"""Explain why a machine with a GPU gets a build for the CPU.

A solver that finds no build for CUDA takes one for the CPU, and does not say so. So the solve is repeated without each
of the other specs, for a newer driver and for a newer GPU; the first repetition with a build for CUDA shows the cause.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from kiln.compat import cuda_arch_of_machine, tables
from kiln.errors import KilnError
from kiln.install.solve_diagnosis import cuda_versions_to_try, is_newer_cuda
from kiln.matchspec_notation import package_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rattler import RepoDataRecord

    from kiln.install.solve_diagnosis import Solver, TargetMachine

    Solve = Callable[[Sequence[str], TargetMachine], RepoDataRecord | None]

MOST_SPECS = 8  # each costs a solve
_CPU = re.compile(r"(?:^|_)cpu(?:_|$|[^a-z])")


def cpu_build_notes(
    records: Iterable[RepoDataRecord], specs: Sequence[str], solve: Solver, machine: TargetMachine
) -> tuple[str, ...]:
    """Return a note with the cause if the first package of the specs with a build for the CPU has one for CUDA too.

    ``solve`` is `kiln.solve_and_install.solve` with the channels and their priority.
    """
    fallback = unrequested_cpu_build(records, specs) if machine.virtual_package_version("__cuda") is not None else None
    if fallback is None:
        return ()

    def solve_for_cuda_build(specs: Sequence[str], on: TargetMachine) -> RepoDataRecord | None:
        """Return the package's build for CUDA that a solve would take; None for one for the CPU, or without any."""
        try:
            solution = solve(specs, virtual_packages=on.virtual_packages)
        except KilnError:
            return None  # the packages to install are known; only their explanation is not
        named = (record for record in solution if record.name.normalized == fallback.name.normalized)
        return next((record for record in named if needs_cuda_driver(record)), None)

    explanations = (_note_on_excluding_spec, _note_on_compute_capability, _note_on_driver)
    notes = (explain(fallback, specs, machine, solve_for_cuda_build) for explain in explanations)
    return tuple(itertools.islice(filter(None, notes), 1))


def unrequested_cpu_build(records: Iterable[RepoDataRecord], specs: Sequence[str]) -> RepoDataRecord | None:
    """Return the first package with a build for the CPU, a requested one if any; None if the CPU was requested."""
    requested = {package_name(spec): spec for spec in specs}
    builds = [record for record in records if _CPU.search(str(record.build))]
    if any(name.endswith("-cpu") or "cpu" in spec[len(name) :] for name, spec in requested.items()):
        return None
    return min(
        builds, key=lambda record: (record.name.normalized not in requested, record.name.normalized), default=None
    )


def needs_cuda_driver(record: RepoDataRecord) -> bool:
    """Return whether a build runs only with a driver."""
    return any(spec.split()[0] == "__cuda" for spec in record.depends)


def _note_on_excluding_spec(
    fallback: RepoDataRecord, specs: Sequence[str], machine: TargetMachine, solve: Solve
) -> str:
    """Return the note if one of the other specs excludes all builds for CUDA."""
    name = fallback.name.normalized
    for spec in specs[:MOST_SPECS]:
        others = [other for other in specs if other != spec]
        if others and package_name(spec) != name and (instead := solve(others, machine)) is not None:
            return _cpu_build_note(
                fallback,
                f"no build for CUDA fits {spec}",
                f"without {spec} it would be {_version_and_build(instead)}; '{name} * cpu*' requests the CPU",
            )
    return ""


def _note_on_compute_capability(
    fallback: RepoDataRecord, specs: Sequence[str], machine: TargetMachine, solve: Solve
) -> str:
    """Return the note if a GPU is older than the builds for CUDA accept."""
    arch = machine.virtual_package_version(cuda_arch_of_machine.NAME)
    if arch is None or (instead := solve(specs, machine.without_virtual_package(cuda_arch_of_machine.NAME))) is None:
        return ""
    return _cpu_build_note(
        fallback,
        f"its builds for CUDA have no code for a GPU of compute capability {arch}, the lowest here",
        f"on a newer GPU it would be {_version_and_build(instead)}; if another GPU of this machine is meant, set "
        f"{cuda_arch_of_machine.OVERRIDE} to its compute capability",
    )


def _note_on_driver(fallback: RepoDataRecord, specs: Sequence[str], machine: TargetMachine, solve: Solve) -> str:
    """Return the note if the driver is older than the builds for CUDA need."""
    here = machine.virtual_package_version("__cuda")
    for cuda in cuda_versions_to_try(""):
        if (
            is_newer_cuda(cuda, here)
            and (instead := solve(specs, machine.with_virtual_package("__cuda", cuda))) is not None
        ):
            row = tables.oldest_driver_row_for_cuda(cuda)
            return _cpu_build_note(
                fallback,
                f"its builds for CUDA need a driver for CUDA {cuda}, and this one runs up to {here}",
                f"with driver {row['driver'] if row else cuda} or newer it would be {_version_and_build(instead)}",
            )
    return ""


def _cpu_build_note(fallback: RepoDataRecord, cause: str, remedy: str) -> str:
    build = f"{fallback.name.normalized} {_version_and_build(fallback)}"
    return f"{build} is a build for the CPU, and this machine has a driver for CUDA: {cause}; {remedy}"


def _version_and_build(record: RepoDataRecord) -> str:
    return f"{record.version} {record.build}"
