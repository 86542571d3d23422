"""The terms of a fleet run besides its plan: the machines to take where a provider refuses, the cost of losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.fleet.machine_types import EXISTING_HOSTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kiln.fleet.plan import FleetPlan, WorkerArrangement
    from kiln.model.fleet_run import MachineType, Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """The terms of a run: ``offers`` in the order in which they are asked for, ``lifetime`` of a worker in seconds.

    A run of several machine types has the offers of the first one, and in ``other_offers`` those of the others.

    A detached run has a ``controller``, where its packages wait for up to ``keep`` seconds.

    ``replacements`` lost workers are replaced, ``joint_replacements`` that are lost together with others, and a config
    is tried on ``attempts``; ``losses`` is what the lost ones cost at most.
    """

    offers: tuple[Offer, ...]
    attempts: int
    replacements: int
    joint_replacements: int
    losses: float
    lifetime: float
    other_offers: tuple[tuple[Offer, ...], ...] = ()
    controller: MachineType | None = None
    keep: float = 0.0


def greatest_cost_of_lost_workers(
    plan: FleetPlan, offers: Iterable[Offer], replacements: int, joint_replacements: int, startup: float
) -> float:
    """Return what lost workers cost at most: each the longest build by the dearest offer, lost at its end.

    Besides those that are lost one by one there are those that are lost together, and of spot workers as many again
    as the former that the provider takes back after a notice.
    """
    offers = tuple(offers)
    hourly = max(offer.hourly_price for offer in offers)
    replacements *= 2 if any(offer.spot for offer in offers) else 1
    return (replacements + joint_replacements) * hourly * (startup + max(job.cold for job in plan.estimates)) / 3600


def run_terms_lines(terms: RunTerms, way: WorkerArrangement) -> Iterator[str]:
    """Yield the lines of the plan about the terms."""
    currency = way.machine_type.currency
    for first, *others in (offers for offers in (terms.offers, *terms.other_offers) if len(offers) > 1):
        yield f"first   {first}"
        yield from (f"else    {offer}, {_offer_price_text(offer)}" for offer in others)
    if way.cost:
        notice = ", as many spot workers that are taken back after a notice" if way.spot else ""
        joint = f"{terms.joint_replacements} that are lost together"
        yield (
            f"losses  {terms.replacements} lost workers are replaced{notice}, and {joint}, which costs"
            f" {terms.losses:.2f} {currency} more at most (--replacements, --budget)"
        )
    if terms.controller is not None:
        yield f"control {_controller_cost_text(terms.controller, way.seconds, terms.keep)}"
    what = "machines stop building" if way.machine_type.provider == EXISTING_HOSTS else "workers end themselves"
    yield f"life    {what} after {terms.lifetime / 3600:.0f} h, even in the middle of a build"


def _controller_cost_text(kind: MachineType, seconds: float, keep: float) -> str:
    """Return what the controller of a detached run costs, besides the workers."""
    hourly, currency = kind.hourly_price(spot=False), kind.currency
    if not kind.is_priced:
        return f"1 {kind.name}, price unknown: it is not counted"
    return (
        f"1 {kind.name}, {hourly:.3f} {currency} an hour: {hourly * seconds / 3600:.2f} {currency} more for the run,"
        f" and {hourly * keep / 3600:.2f} {currency} at most while its packages wait (--keep)"
    )


def _offer_price_text(offer: Offer) -> str:
    kind = offer.machine_type
    return f"{offer.hourly_price:.3f} {kind.currency} an hour" if kind.is_priced else "price unknown"
