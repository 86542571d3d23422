"""The offers of a provider that a run's workers are requested by, in order: refused ones are asked for again later."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kiln.model.fleet_run import MachineType, Offer

if TYPE_CHECKING:
    from collections.abc import Sequence


BACKOFF = (60.0, 120.0, 240.0, 480.0, 900.0)  # seconds until a refused offer is asked for again; the last one repeats
ON_DEMAND = "on-demand"


def offers_in_request_order(
    machine_type: MachineType, fallbacks: Sequence[MachineType | str], *, zones: Sequence[str] = (), spot: bool = False
) -> tuple[Offer, ...]:
    """Return the offers of a run in the order in which they are asked for, each in all zones.

    ``fallbacks`` are machine types, or the word `ON_DEMAND`: from there on workers are on demand, beginning with the
    types before it.
    """
    types, kinds = [machine_type], [(machine_type, spot)]
    for fallback in fallbacks:
        if isinstance(fallback, str):
            spot = False
            kinds += [(kind, spot) for kind in types]
        else:
            types.append(fallback)
            kinds.append((fallback, spot))
    offers = (Offer(machine_type=kind, spot=is_spot, zone=zone) for kind, is_spot in kinds for zone in zones or ("",))
    return tuple(dict.fromkeys(offers))


class OffersWithRefusals:
    """The offers of a run with their refusals."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._offers = tuple(offers)
        self._refusals: dict[tuple[str, bool, str], int] = {}
        self._blocked_until: dict[tuple[str, bool, str], float] = {}
        self._reasons: dict[tuple[str, bool, str], str] = {}
        self._tried: set[tuple[str, bool, str]] = set()  # refused since any was accepted

    def first_available_offer(self, now: float, among: Sequence[Offer] = ()) -> Offer | None:
        """Return the first offer, of all or ``among`` some, that may be asked for now; None after recent refusals.

        Those that were refused since any was accepted come last: where a refusal takes longer than the pause after it,
        the last offers would never be asked for.
        """
        free = [offer for offer in among or self._offers if now >= self._blocked_until.get(offer.key, 0.0)]
        return next((offer for offer in free if offer.key not in self._tried), free[0] if free else None)

    def has_untried_offer(self, now: float, among: Sequence[Offer]) -> bool:
        """Return whether an offer may be asked for now that was not refused since any was accepted."""
        first = self.first_available_offer(now, among)
        return first is not None and first.key not in self._tried

    def first_available_zone(self, now: float) -> str:
        """Return the zone of a worker of another type, such as the cache's, that is requested now."""
        return (self.first_available_offer(now) or self._offers[0]).zone

    def next_available_time(self, among: Sequence[Offer] = ()) -> float:
        """Return the time from which some offer, of all or ``among`` some, may be asked for."""
        return min(self._blocked_until.get(offer.key, 0.0) for offer in among or self._offers)

    def refusal_reason(self, otherwise: str) -> str:
        """Return why the offers were refused; ``otherwise`` is the reason where there is one offer only."""
        if len(self._offers) == 1:
            return otherwise
        return "; ".join(f"{offer}: {self._reasons[offer.key]}" for offer in self._offers if offer.key in self._reasons)

    def record_refusal(self, key: tuple[str, bool, str], now: float, reason: str = "") -> None:
        """Record that an offer was refused; refusals of several workers at once count as one."""
        self._reasons[key] = reason
        self._tried.add(key)
        if now < self._blocked_until.get(key, 0.0):
            return
        count = self._refusals.get(key, 0)
        self._refusals[key] = count + 1
        self._blocked_until[key] = now + BACKOFF[min(count, len(BACKOFF) - 1)]

    def exclude_offers(self, offers: Sequence[Offer], reason: str) -> None:
        """Ask for offers no more."""
        for offer in offers:
            self._blocked_until[offer.key], self._reasons[offer.key] = math.inf, reason

    def record_acceptance(self, key: tuple[str, bool, str]) -> None:
        """Record that an offer was accepted: its next refusal is the first one again."""
        self._refusals.pop(key, None)
        self._tried.clear()
