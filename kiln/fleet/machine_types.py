"""The table of machine types that providers offer, and the types of existing hosts.

Their prices are in `kiln.fleet.price_table`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

import yaml

from kiln import plain_yaml_loading
from kiln.errors import MalformedYaml, UsageError, did_you_mean
from kiln.model.fleet_run import MachineType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

EXISTING_HOSTS = "static"  # their provider
SIZES = ("cores", "memory", "disk", "gpus")


def read_machine_types(path: Path) -> tuple[MachineType, ...]:
    """Read the table of machine types, a list of rows under ``kiln_machine_types``.

    Raises:
        MalformedYaml: when a row lacks a field, or has an invalid one.
    """
    try:
        rows = plain_yaml_loading.load(path.read_text(encoding="utf-8"))["kiln_machine_types"]
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise _invalid_table_error(str(path), error) from error
    return machine_types_from_rows(rows, str(path))


def machine_types_from_rows(rows: Any, source: str) -> tuple[MachineType, ...]:
    """Return the machine types of a table's rows; ``source`` is where they are written.

    Raises:
        MalformedYaml: when a row lacks a field, or has an invalid one.
    """
    try:
        return tuple(_machine_type_from_row(row) for row in rows)
    except (KeyError, TypeError, ValueError) as error:
        raise _invalid_table_error(source, error) from error


def _invalid_table_error(source: str, error: Exception) -> MalformedYaml:
    return MalformedYaml(f"{source} is not a table of machine types", why=f"{type(error).__name__}: {error}")


def _machine_type_from_row(row: Mapping[str, Any]) -> MachineType:
    return MachineType(
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


def select_types_by_name(
    table: Sequence[MachineType], *, provider: str, types: Sequence[str]
) -> tuple[MachineType, ...]:
    """Return a provider's machine types by kiln's names or the provider's.

    Raises:
        UsageError: when one is not in the table; the message lists those that are.
    """
    offers = {machine_type.type: machine_type for machine_type in table if machine_type.provider == provider}
    if not offers:
        providers = sorted({machine_type.provider for machine_type in table})
        hint = did_you_mean(provider, providers) or f"one of {', '.join(providers)}"
        raise UsageError(f"unknown provider {provider!r}", hint=hint)
    # Several types may be of one flavor, such as the sizes of virtual machines on this computer.
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

    Raises:
        UsageError: when a host has an invalid size.
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
