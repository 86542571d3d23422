"""Offers taken in order, lost workers replaced, and refused credentials."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from kiln.base.errors import WorkersLost
from kiln.fleet.answers import credentials_error
from kiln.fleet.model import MachineType, Offer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kiln.fleet.run_config import FleetRunConfig
    from kiln.fleet.state import FleetState


LOGGER = logging.getLogger(__name__)
RENEWAL = (
    "credentials that are renewed in their file are used at the next attempt; new variables need 'kill -9' of this"
    " process, which leaves the workers alone, and then the same command"
)
LENGTH = 200  # characters of a provider's reason in a line of the view


class CredentialRefusals:
    """Decides whether a run goes on whose provider does not accept the credentials.

    Neither the builds of existing workers, nor their leases, nor the collection of packages need the provider.
    """

    def __init__(self, state: FleetState) -> None:
        self.state = state
        self._is_noted = False
        self._since: float | None = None

    def on_credentials_accepted(self) -> None:
        """Record that the provider accepts the credentials."""
        self._is_noted, self._since = False, None

    def on_machines_listed(self) -> None:
        """Record that the provider lists workers, whatever else it refuses."""
        self._since = None

    def waiting_text(self, worker: str, reason: str) -> str:
        """Return why a silent worker is waited for while the provider, refusing the credentials, cannot list it."""
        self._record_first_refusal()
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(self._since))
        refusal = f"the provider does not accept the credentials since {since} ({' '.join(reason.split())[:LENGTH]})"
        return f"{worker} does not answer, and {refusal}, so it is unknown whether it exists: waiting; {RENEWAL}"

    def _record_first_refusal(self) -> None:
        self._since = self.state.executor.now() if self._since is None else self._since

    def on_credentials_refused(self, reason: str) -> bool:
        """Record that the provider refused a worker by the credentials; return whether that stops the run."""
        self._record_first_refusal()
        builders = self.state.inventory.alive_builders
        if not builders:
            self.state.stop = credentials_error(reason, self.state.run_config.machine_type.provider)
        elif not self._is_noted and any(builder.record.provisioned is not None for builder in builders):
            self._is_noted = True
            LOGGER.warning(
                "note: the provider does not accept the credentials any more (%s): running builds go on and are"
                " collected, but no worker is replaced or terminated; %s",
                reason,
                RENEWAL,
            )
        return self.state.stop is not None


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


OUTAGES = 3  # losses of all workers together that every run replaces
ONE_OUTAGE = 300.0  # seconds within which workers are lost by the same outage


def joint_loss_limit(replacements: int, workers: int) -> int:
    """Return how many workers that are lost together a run replaces, besides those that are lost one by one."""
    return max(replacements, OUTAGES * workers)


class LostWorkerLimits:
    """The lost workers of a run: ``single`` ones, and those that were lost together (``joint``) in ``outages``.

    An outage takes many workers at once, and is no reason to end a run. But a flawed image, or a zone that ends every
    worker, would take them again and again: so they have a limit of their own, and from the second outage on, without a
    finished config in between, the next workers are requested ``wait_until`` a later time.
    """

    def __init__(self, run_config: FleetRunConfig) -> None:
        self.single = self.joint = self.outages = 0
        self.wait_until = 0.0
        self._limit = run_config.replacements
        self._joint_limit = joint_loss_limit(run_config.replacements, run_config.max_workers)
        self._in_vain = 0  # outages since a config was finished
        self._last = -ONE_OUTAGE

    def count_lost_worker(self, now: float, *, together: bool) -> None:
        """Count a lost worker."""
        if not together:
            self.single += 1
            return
        self.joint += 1
        if now >= self._last + ONE_OUTAGE:
            self.outages += 1
            self._in_vain += 1
            if self._in_vain > 1:
                self.wait_until = now + BACKOFF[min(self._in_vain, len(BACKOFF) - 1)]
        self._last = now

    def reset_outages(self) -> None:
        """Record that a config was finished: the next outage is the first one again."""
        self._in_vain = 0

    @property
    def is_exhausted(self) -> bool:
        """True when no more lost workers are replaced."""
        return self.single > self._limit or self.joint > self._joint_limit

    def exhausted_error(self, reason: str) -> WorkersLost:
        """Return the error of a run that has no worker left; ``reason`` is that of the last loss."""
        if self.joint <= self._joint_limit:
            what = f"{self.single} workers were lost, and no more are replaced"
            return WorkersLost(what, why=reason, hint="--replacements N allows for more")
        return WorkersLost(
            f"{self.joint} workers were lost together, in {self.outages} outages, and no more are replaced",
            why=f"{reason}; a zone that is down, or a flawed image, ends their replacements, too",
            hint="look at the provider's console and status, try another --zone or --type; the same command builds the"
            " rest (--replacements N allows for more)",
        )
