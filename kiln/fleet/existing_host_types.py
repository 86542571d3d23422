"""Existing hosts as machine types: those of one size are of one type, of which there are so many.

A host in ``kiln_static_hosts`` may have ``cores``, ``memory`` and ``disk`` (GB) and ``gpus``; what it leaves out is
unknown. The module ``kiln_static`` names types in the same way.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from kiln.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.model.fleet import MachineType

SIZES = ("cores", "memory", "disk", "gpus")
PROVIDER = "static"


def machine_types(hosts: Any, unknown: MachineType) -> list[MachineType]:
    """Return the machine types of hosts; ``unknown`` is that of a host without sizes, and of an unreadable list.

    Raises:
        UsageError: when a host has an invalid size.
    """
    if not isinstance(hosts, list) or not all(isinstance(host, dict) for host in hosts) or not hosts:
        return [unknown]
    counts: dict[MachineType, int] = {}
    for host in hosts:
        kind = _machine_type(host, unknown)
        counts[kind] = counts.get(kind, 0) + 1
    return [dataclasses.replace(kind, limit=count) for kind, count in counts.items()]


def _machine_type(host: Mapping[str, Any], unknown: MachineType) -> MachineType:
    for name in SIZES:
        value = host.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
            raise UsageError(
                f"invalid {name} {value!r} of the host {host.get('address')} in kiln_static_hosts",
                hint=f'a number, such as "{name}": {1 if name == "gpus" else 32}',
            )
    name = type_name(host)
    return dataclasses.replace(
        unknown,
        type=name,
        name=name if name != PROVIDER else unknown.name,
        cores=int(host.get("cores", 0)),
        memory=float(host.get("memory", 0)),
        disk=float(host.get("disk", 0)),
        gpus=int(host.get("gpus", 0)),
    )


def type_name(host: Mapping[str, Any]) -> str:
    """Return the name of a host's machine type: ``static`` or, with its sizes, such as ``static-32cores-64memory``."""
    return "-".join([PROVIDER, *(f"{host[name]:g}{name}" for name in SIZES if host.get(name))])
