"""The quotas of a provider's account: what a plan needs of them, and what it lacks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.errors import FleetLimit
from kiln.model.fleet_run import MachineType, Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kiln.fleet.plan import FleetLimits, FleetPlan, WorkerArrangement

UNITS = {"cores": "vCPUs", "memory": "GB of memory", "disk": "GB of disk", "machines": "machines"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A limit of an account and its use: ``cores``, GB of ``memory`` or ``disk``, or ``machines`` (``measure``).

    With ``spot`` it counts spot machines, with False those on demand, with None all; so with ``gpu`` those with a GPU.
    The machine that will control the run gets what is ``reserved``.
    """

    name: str
    measure: str
    limit: float
    used: float = 0.0
    spot: bool | None = None
    gpu: bool | None = None
    reserved: float = 0.0

    @classmethod
    def from_provider_answer(cls, row: Mapping[str, Any], controller: MachineType | None = None) -> Quota:
        """Return a quota from the answer of ``quota.yml``, of which a ``controller`` to be provisioned needs a part."""
        quota = cls(**row)
        machines = () if controller is None else ((controller, False),)
        return dataclasses.replace(quota, reserved=quota.units_needed_by(machines))

    @property
    def free_units(self) -> float:
        """The units that may be used besides."""
        return max(0.0, self.limit - self.used - self.reserved)

    def units_needed_by(self, machines: Iterable[tuple[MachineType, bool]]) -> float:
        """Return what machines need of it; each is a type, and whether it is spot."""
        counted = [kind for kind, spot in machines if self.spot in {None, spot} and self.gpu in {None, kind.gpus > 0}]
        return (
            float(len(counted)) if self.measure == "machines" else sum(getattr(kind, self.measure) for kind in counted)
        )


def fits_quotas(quotas: Iterable[Quota], way: WorkerArrangement) -> bool:
    """Return whether an arrangement stays within quotas."""
    machines = way.machines
    return all(quota.units_needed_by(machines) <= quota.free_units for quota in quotas)


def plan_within_quotas(
    quotas: tuple[Quota, ...], planned: Callable[[FleetLimits], FleetPlan], bounds: FleetLimits
) -> FleetPlan:
    """Return the plan within quotas, with the selection that they have kept from it.

    Raises:
        FleetLimit: when no arrangement is within the quotas, with what to request; and those of ``planned``.
    """
    plan = dataclasses.replace(whole := planned(bounds), bounds=dataclasses.replace(bounds, quotas=quotas))
    ways = (whole.selection, whole.cheapest, whole.fastest)
    if all(fits_quotas(quotas, way) for way in ways):
        return plan
    try:
        return dataclasses.replace(
            planned(plan.bounds), without_quotas=None if fits_quotas(quotas, whole.selection) else whole.selection
        )
    except FleetLimit as error:
        needed = whole.cheapest.machines
        requests = [text for quota in quotas if (text := quota_request_text(quota, needed))]
        raise FleetLimit(
            "no arrangement builds these configs within the quotas of the account",
            why="; ".join(f"{quota.free_units:g} {UNITS[quota.measure]} are free: {quota.name}" for quota in quotas),
            hint="; ".join(requests) or error.hint,
        ) from error


def quota_use_lines(quotas: Iterable[Quota], way: WorkerArrangement) -> Iterator[str]:
    """Yield what an arrangement needs of the quotas."""
    machines = way.machines
    for quota in quotas:
        need, unit = quota.units_needed_by(machines), UNITS[quota.measure]
        if need:
            controller = f", {quota.reserved:g} for the controller" if quota.reserved else ""
            use = f"{quota.name}, {quota.used:g} of {quota.limit:g} in use{controller}"
            yield f"quota   {need:g} of {quota.free_units:g} free {unit}: {use}"


def quota_warnings(plan: FleetPlan, offers: Iterable[Sequence[Offer]] = ()) -> Iterator[str]:
    """Yield what to request for all that a plan within quotas leaves out, or may need later.

    That is its selection without them, its tests after the builds, and ``offers`` that replace a planned machine type,
    which is the first of each: all workers of that type may be replaced.
    """
    way, wanted, tests = plan.selection, plan.without_quotas, plan.bounds.tests
    machines = way.machines
    wishes: list[tuple[str, list[tuple[MachineType, bool]]]] = []
    if wanted is not None:
        what = f"limits this plan to {way.worker_count} workers; for {wanted.worker_count}"
        wishes.append((what, wanted.machines))
    for first, *others in offers:
        planned, count = (first.machine_type, way.spot), way.worker_types.count(first.machine_type)
        for kind, spot in dict.fromkeys((offer.machine_type, offer.spot) for offer in others):
            mixed = [(kind, spot) if machine == planned else machine for machine in machines[: way.worker_count]]
            name = Offer(machine_type=kind, spot=spot)  # zones have no quotas of their own
            wishes.append((f"too small for {count} of the fall-back {name};", mixed + machines[way.worker_count :]))
    if tests is not None:
        wishes.append(("too small for the tests after the builds;", [(tests.machine_type, tests.spot)]))
    for what, needed in wishes:
        for quota in plan.bounds.quotas:
            if request := quota_request_text(quota, needed):
                yield f"quota   {what} {request}"


def quota_request_text(quota: Quota, machines: Sequence[tuple[MachineType, bool]]) -> str:
    """Return what to request of the provider so that machines fit; empty if they do."""
    need = quota.units_needed_by(machines)
    if need <= quota.free_units:
        return ""
    request = quota.used + quota.reserved + need
    return f"request {request:g} {UNITS[quota.measure]} of {quota.name}, which is {quota.limit:g}"
