"""The choice of a machine type for each config: the cheapest or the fastest that holds its size.

Configs that share a compile are built on one type if one holds them all: the compile is on its workers' disks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kiln.errors import UsageError
from kiln.model.job_estimate import JobEstimate, JobSize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kiln.model.fleet_run import MachineType


NEAREST = 3  # machine types that an error names
Tables: TypeAlias = "Mapping[MachineType, Mapping[str, JobEstimate]]"  # the estimates of each config on each type


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTypesOfConfigs:
    """A machine type for each config: ``estimates`` name it, ``types`` are those that are used, most work first."""

    estimates: tuple[JobEstimate, ...]
    types: tuple[MachineType, ...]

    @classmethod
    def from_estimates(cls, estimates: Iterable[JobEstimate], kinds: Iterable[MachineType]) -> MachineTypesOfConfigs:
        """Return the assignment that estimates with types make."""
        estimates, by_type = tuple(estimates), {kind.type: kind for kind in kinds}
        used = dict.fromkeys(estimate.type for estimate in estimates)
        return cls(
            estimates=estimates,
            types=tuple(
                by_type[name] for name in sorted(used, key=lambda name: -_build_seconds_on_type(estimates, name))
            ),
        )

    def worker_types(self, workers: int) -> tuple[MachineType, ...]:
        """Return the types of so many workers: each has one at least, and those with more work have more.

        Of fewer workers than types none are returned; a type has no more workers than configs, nor than it is limited
        to.
        """
        counts = dict.fromkeys(self.types, 1)
        if len(counts) > workers:
            return ()
        configs = {kind: sum(job.type == kind.type for job in self.estimates) for kind in self.types}
        work = {kind: _build_seconds_on_type(self.estimates, kind.type) for kind in self.types}
        while sum(counts.values()) < workers:
            open_kinds = [kind for kind in self.types if counts[kind] < min(configs[kind], kind.limit or workers)]
            if not open_kinds:
                break
            counts[max(open_kinds, key=lambda kind: work[kind] / counts[kind])] += 1
        return tuple(kind for kind, count in counts.items() for _ in range(count))


def _build_seconds_on_type(estimates: Iterable[JobEstimate], name: str) -> float:
    """Return the seconds of the builds on a type, with a compile for each group."""
    jobs = [job for job in estimates if job.type == name]
    cold = {job.group: job.cold for job in jobs}
    warm = {job.group: job.warm for job in jobs}
    return sum(cold.values()) + sum(job.warm for job in jobs) - sum(warm.values())


def candidate_assignments(
    estimates: Mapping[MachineType, Sequence[JobEstimate]], *, spot: bool = False
) -> tuple[MachineTypesOfConfigs, ...]:
    """Return the assignments to compare: one type for all, where it holds all; each group's cheapest, and fastest.

    Raises:
        UsageError: when no type is large enough for a config; the message has its need.
    """
    _require_fitting_type_for_each(estimates)
    tables = {kind: {job.config: job for job in jobs} for kind, jobs in estimates.items()}
    names = _config_names(tables)
    choices = [dict.fromkeys(names, kind) for kind in _types_that_fit_all(tables, names)]
    if len(estimates) > 1:
        choices += [_cheapest_or_fastest_types(tables, order, spot=spot) for order in ("cost", "time")]
        if any(kind.limit for kind in estimates):
            choices += [
                _load_balanced_types(tables, _compile_groups(tables)),
                _load_balanced_types(tables, [(config,) for config in names]),
            ]
    result: dict[tuple[str, ...], MachineTypesOfConfigs] = {}
    for choice in choices:
        jobs = [dataclasses.replace(tables[kind][name], type=kind.type) for name, kind in choice.items()]
        assignment = MachineTypesOfConfigs.from_estimates(jobs, estimates)
        result.setdefault(tuple(job.type for job in jobs), assignment)
    return tuple(result.values())


def _config_names(tables: Tables) -> list[str]:
    return list(next(iter(tables.values())))


def _compile_groups(tables: Tables) -> list[tuple[str, ...]]:
    """Return the configs that share a compile, each alone where no type holds all of them."""
    groups: dict[str, list[str]] = {}
    for job in next(iter(tables.values())).values():
        groups.setdefault(job.group if job.warm < job.cold else job.config, []).append(job.config)
    return [
        part
        for names in groups.values()
        for part in ([tuple(names)] if _types_that_fit_all(tables, names) else [(name,) for name in names])
    ]


def _types_that_fit_all(tables: Tables, names: Sequence[str]) -> list[MachineType]:
    return [kind for kind, jobs in tables.items() if all(jobs[name].size.fits(kind) for name in names)]


def _group_build_seconds(tables: Tables, kind: MachineType, names: Sequence[str]) -> float:
    """Return the time of configs that share a compile, one after the other."""
    jobs = [tables[kind][name] for name in names]
    return max(job.cold for job in jobs) + sum(job.warm for job in jobs) - min(job.warm for job in jobs)


def _cheapest_or_fastest_types(tables: Tables, order: str, *, spot: bool) -> dict[str, MachineType]:
    """Return the cheapest or the fastest type for each config: for its group, where one type holds its group."""
    choice: dict[str, MachineType] = {}
    for names in _compile_groups(tables):

        def cost_or_time_rank(kind: MachineType, names: Sequence[str] = names) -> tuple[float, ...]:
            seconds = _group_build_seconds(tables, kind, names)
            cost = seconds * kind.hourly_price(spot=spot) if kind.is_priced else seconds * kind.cores
            return (cost, seconds) if order == "cost" else (seconds, cost)

        choice |= dict.fromkeys(names, min(_types_that_fit_all(tables, names), key=cost_or_time_rank))
    return {name: choice[name] for name in _config_names(tables)}


def _load_balanced_types(tables: Tables, parts: Sequence[Sequence[str]]) -> dict[str, MachineType]:
    """Return a type for each config that leaves no machine of limited types idle: the longest first."""
    load = dict.fromkeys(tables, 0.0)
    choice: dict[str, MachineType] = {}

    def longest_group_seconds(names: Sequence[str]) -> float:
        return max(_group_build_seconds(tables, kind, names) for kind in _types_that_fit_all(tables, names))

    for names in sorted(parts, key=longest_group_seconds, reverse=True):
        ends = {
            kind: load[kind] + _group_build_seconds(tables, kind, names) / (kind.limit or 1)
            for kind in _types_that_fit_all(tables, names)
        }
        kind = min(ends, key=ends.__getitem__)
        load[kind] = ends[kind]
        choice |= dict.fromkeys(names, kind)
    return {name: choice[name] for name in _config_names(tables)}


def _require_fitting_type_for_each(estimates: Mapping[MachineType, Sequence[JobEstimate]]) -> None:
    for job in next(iter(estimates.values())):
        if not any(job.size.fits(kind) for kind in estimates):
            offers = "; ".join(f"{kind.type} has {machine_size_text(kind)}" for kind in estimates)
            raise UsageError(
                f"no machine type is large enough for {job.config}",
                why=f"it needs {job.size}, and {offers}",
                hint="choose a larger --type, or change its size in fleet-sizes.yml or the recipe (extra: worker:)",
            )


def require_large_enough_type(offers: Sequence[MachineType], sizes: Mapping[str, JobSize]) -> None:
    """Refuse sizes that no machine type of a provider holds, of which `default_types` would have to take a smaller one.

    Raises:
        UsageError: with the types that come next.
    """
    for config, size in sizes.items():
        if any(size.fits(kind) for kind in offers):
            continue

        def distance_to_size(kind: MachineType, size: JobSize = size) -> tuple[float, ...]:
            pairs = ((kind.gpus, size.gpus), (kind.memory, size.memory), (kind.cores, size.cores))
            lacking = sum(1 for offer, need in pairs if offer < need)
            return (lacking, *(-min(offer, need) for offer, need in pairs), kind.cores)

        nearest = sorted(offers, key=distance_to_size)[:NEAREST]
        next_types = "; ".join(f"{kind.type} with {machine_size_text(kind)}" for kind in nearest)
        raise UsageError(
            f"no machine type of {offers[0].provider} is large enough for {config}",
            why=f"it needs {size}; the next are {next_types}",
            hint="change its size in fleet-sizes.yml or the recipe (extra: worker:), or add types: kiln_machine_types"
            " in a file for --vars",
        )


def machine_size_text(kind: MachineType) -> str:
    """Return the size of a machine type as text."""
    sizes = {"cores": kind.cores, "memory": kind.memory, "disk": kind.disk}
    size = JobSize(cores=kind.cores, memory=kind.memory, disk=kind.disk, gpus=kind.gpus)
    unknown = [f"{name} unknown" for name, value in sizes.items() if not value]
    return ", ".join([*([] if size == JobSize() else [str(size)]), *unknown, *([] if kind.gpus else ["no GPU"])])


def too_few_workers_error(assignment: MachineTypesOfConfigs, workers: int) -> UsageError:
    """Return the error for a run whose configs need more machine types than it has workers."""
    needs = "; ".join(
        f"{kind.type} for {', '.join(job.config for job in assignment.estimates if job.type == kind.type)}"
        for kind in assignment.types
    )
    return UsageError(
        f"these configs need workers of {len(assignment.types)} machine types, and --workers is {workers}",
        why=needs,
        hint=f"--workers {len(assignment.types)}, or a --type that is large enough for all",
    )
