"""The quotas of a provider's account: what a plan needs of them, and what it lacks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.errors import FleetLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kiln.fleet.plan import Arrangement, FleetBounds, FleetPlan
    from kiln.model.fleet import MachineType

UNITS = {"cores": "vCPUs", "memory": "GB of memory", "machines": "machines"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A limit of an account and what is used of it: ``cores``, GB of ``memory`` or ``machines`` (``measure``).

    With ``spot`` it counts spot machines, with False those on demand, with None all; so with ``gpu`` those with a GPU.
    """

    name: str
    measure: str
    limit: float
    used: float = 0.0
    spot: bool | None = None
    gpu: bool | None = None

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> Quota:
        """Return a quota from the answer of ``quota.yml``."""
        return cls(**{name: row[name] for name in cls.__slots__})

    @property
    def free(self) -> float:
        """What may be used besides."""
        return max(0.0, self.limit - self.used)

    def needed(self, machines: Iterable[tuple[MachineType, bool]]) -> float:
        """Return what machines need of it; each is a type, and whether it is spot."""
        counted = [kind for kind, spot in machines if self.spot in {None, spot} and self.gpu in {None, kind.gpus > 0}]
        return (
            float(len(counted)) if self.measure == "machines" else sum(getattr(kind, self.measure) for kind in counted)
        )


def machines_of(way: Arrangement) -> list[tuple[MachineType, bool]]:
    """Return all machines of an arrangement at once, and whether each is spot."""
    machines = [(kind, way.spot) for kind in way.worker_types]
    machines += [] if way.cache is None else [(way.cache, False)]
    machines += [] if way.pool is None else [(way.pool.machine_type, way.spot)] * way.pool.workers
    return machines


def fits(quotas: Iterable[Quota], way: Arrangement) -> bool:
    """Return whether an arrangement stays within quotas."""
    machines = machines_of(way)
    return all(quota.needed(machines) <= quota.free for quota in quotas)


def plan_within(
    quotas: tuple[Quota, ...], planned: Callable[[FleetBounds], FleetPlan], bounds: FleetBounds
) -> FleetPlan:
    """Return the plan within quotas, with the selection that they have kept from it.

    Raises:
        FleetLimit: when no arrangement is within the quotas, with what to request; and those of ``planned``.
    """
    plan = dataclasses.replace(whole := planned(bounds), bounds=dataclasses.replace(bounds, quotas=quotas))
    ways = (whole.selection, whole.cheapest, whole.fastest)
    if all(fits(quotas, way) for way in ways):
        return plan
    try:
        return dataclasses.replace(
            planned(plan.bounds), without_quotas=None if fits(quotas, whole.selection) else whole.selection
        )
    except FleetLimit as error:
        requests = [text for quota in quotas if (text := request_text(quota, whole.cheapest))]
        raise FleetLimit(
            "no arrangement builds these configs within the quotas of the account",
            why="; ".join(f"{quota.free:g} {UNITS[quota.measure]} are free: {quota.name}" for quota in quotas),
            hint="; ".join(requests) or error.hint,
        ) from error


def lines(quotas: Iterable[Quota], way: Arrangement, wanted: Arrangement | None) -> Iterator[str]:
    """Yield what an arrangement needs of the quotas, and what to request for the one that was ``wanted``."""
    machines = machines_of(way)
    for quota in quotas:
        need, unit = quota.needed(machines), UNITS[quota.measure]
        if need:
            use = f"{quota.name}, {quota.used:g} of {quota.limit:g} in use"
            yield f"quota   {need:g} of {quota.free:g} free {unit}: {use}"
        if wanted is not None and (request := request_text(quota, wanted)):
            yield f"quota   limits this plan to {way.workers} workers; for {wanted.workers} {request}"


def request_text(quota: Quota, way: Arrangement) -> str:
    """Return what to request of the provider so that an arrangement fits; empty if it does."""
    need = quota.needed(machines_of(way))
    if need <= quota.free:
        return ""
    return f"request {quota.used + need:g} {UNITS[quota.measure]} of {quota.name}, which is {quota.limit:g}"
