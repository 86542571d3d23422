"""The machine types that providers offer, and the choice of one for each config."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kiln.base.errors import MalformedYaml, UsageError, did_you_mean
from kiln.fleet.model import MachineType
from kiln.state.results import JobEstimate, JobSize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


EXISTING_HOSTS = "static"  # their provider
SIZES = ("cores", "memory", "disk", "gpus")


def read_machine_types(path: Path) -> tuple[MachineType, ...]:
    """Read the table of machine types, a list of rows under ``kiln_machine_types``."""
    import yaml

    from kiln.base import yaml as base_yaml

    try:
        rows = base_yaml.load(path.read_text(encoding="utf-8"))["kiln_machine_types"]
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise _invalid_table_error(str(path), error) from error
    return machine_types_from_rows(rows, str(path))


def machine_types_from_rows(rows: Any, source: str) -> tuple[MachineType, ...]:
    """Return the machine types of a table's rows; ``source`` is where they are written."""
    try:
        return tuple(
            MachineType(
                provider=str(row["provider"]),
                type=str(row["type"]),
                name=str(row["flavor"]),
                cores=int(row["cores"]),
                memory=float(row["memory"]),
                disk=float(row["disk"]),
                gpus=int(row.get("gpus", 0)),
                gpu=str(row.get("gpu", "")),
                billed=float(row.get("billed", 1)),
            )
            for row in rows
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _invalid_table_error(source, error) from error


def _invalid_table_error(source: str, error: Exception) -> MalformedYaml:
    return MalformedYaml(f"{source} is not a table of machine types", why=f"{type(error).__name__}: {error}")


def select_types_by_name(
    table: Sequence[MachineType], *, provider: str, types: Sequence[str]
) -> tuple[MachineType, ...]:
    """Return a provider's machine types by kiln's names or the provider's."""
    offers = {machine_type.type: machine_type for machine_type in table if machine_type.provider == provider}
    if not offers:
        providers = sorted({machine_type.provider for machine_type in table})
        hint = did_you_mean(provider, providers) or f"one of {', '.join(providers)}"
        raise UsageError(f"unknown provider {provider!r}", hint=hint)
    # Several types may be of one flavor: its first row is taken.
    flavors = {machine_type.name: machine_type for machine_type in reversed(offers.values())}
    for name in types:
        if name not in offers and name not in flavors:
            hint = f"one of {', '.join(sorted(offers))}"
            raise UsageError(f"{provider} has no machine type {name!r}", hint=hint)
    return tuple(offers.get(name) or flavors[name] for name in types)


def types_of_existing_hosts(hosts: Any, unknown: MachineType) -> list[MachineType]:
    """Return the machine types of existing hosts: those of one size are of one type, of which there are so many.

    A host in ``kiln_static_hosts`` may have ``cores``, ``memory`` and ``disk`` (GB) and ``gpus``; what it leaves out is
    unknown. ``unknown`` is the type of a host without sizes, and of an unreadable list.
    """
    if not isinstance(hosts, list) or not all(isinstance(host, dict) for host in hosts) or not hosts:
        return [unknown]
    counts = Counter(_host_machine_type(host, unknown) for host in hosts)
    return [dataclasses.replace(kind, limit=count) for kind, count in counts.items()]


def _host_machine_type(host: Mapping[str, Any], unknown: MachineType) -> MachineType:
    for name in SIZES:
        value = host.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
            raise UsageError(
                f"invalid {name} {value!r} of the host {host.get('address')} in kiln_static_hosts",
                hint=f'a number, such as "{name}": {1 if name == "gpus" else 32}',
            )
    name = host_type_name(host)
    return dataclasses.replace(
        unknown,
        type=name,
        name=name if name != EXISTING_HOSTS else unknown.name,
        cores=int(host.get("cores", 0)),
        memory=float(host.get("memory", 0)),
        disk=float(host.get("disk", 0)),
        gpus=int(host.get("gpus", 0)),
    )


def host_type_name(host: Mapping[str, Any]) -> str:
    """Return the name of a host's machine type: ``static`` or, with its sizes, such as ``static-32cores-64memory``.

    The module ``kiln_static`` names types in the same way.
    """
    return "-".join([EXISTING_HOSTS, *(f"{host[name]:g}{name}" for name in SIZES if host.get(name))])


NEAREST = 3  # machine types that an error names
Tables: TypeAlias = "Mapping[MachineType, Mapping[str, JobEstimate]]"  # the estimates of each config on each type


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTypesOfConfigs:
    """A machine type for each config: ``estimates`` name it, ``types`` are those that are used, most work first."""

    estimates: tuple[JobEstimate, ...]
    types: tuple[MachineType, ...]

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
    """Return the assignments to compare: one type for all, where it holds all; each group's cheapest, and fastest."""
    require_large_enough_type(list(estimates), {job.config: job.size for job in next(iter(estimates.values()))})
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
        used = sorted(dict.fromkeys(choice.values()), key=lambda kind: -_build_seconds_on_type(jobs, kind.type))
        assignment = MachineTypesOfConfigs(estimates=tuple(jobs), types=tuple(used))
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


def require_large_enough_type(offers: Sequence[MachineType], sizes: Mapping[str, JobSize]) -> None:
    """Refuse sizes that no machine type holds: `default_machine_types` would take a smaller one."""
    for config, size in sizes.items():
        if any(size.fits(kind) for kind in offers):
            continue

        def distance_to_size(kind: MachineType, size: JobSize = size) -> tuple[float, ...]:
            pairs = ((kind.gpus, size.gpus), (kind.memory, size.memory), (kind.cores, size.cores))
            lacking = sum(1 for offer, need in pairs if offer < need)
            return (lacking, *(-min(offer, need) for offer, need in pairs), kind.cores)

        nearest = sorted(offers, key=distance_to_size)[:NEAREST]
        raise UsageError(
            f"no machine type is large enough for {config}",
            why=f"it needs {size}, and " + "; ".join(f"{kind.type} has {machine_size_text(kind)}" for kind in nearest),
            hint="choose a larger --type, change its size in fleet-sizes.yml or the recipe (extra: worker:), or add"
            " types: kiln_machine_types in a file for --vars",
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
