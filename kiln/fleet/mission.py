"""What a fleet run is to do, and within what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.fleet.plan import price
from kiln.model.fleet import MachineState

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.fleet import Flavour, FleetRun, Machine, Work
    from kiln.model.run import CellRun

CACHE = "cache"  # ends the name of the machine that holds the others' cache


def cache_of(run: FleetRun) -> str | None:
    """Return the type of the machine that holds a run's cache, None where it has none any more."""
    over = {MachineState.LEAVING, MachineState.LOST, MachineState.REFUSED, MachineState.GONE}
    there = (each for each in run.machines if each.name.endswith(CACHE) and each.state not in over)
    return next((each.type for each in there), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mission:
    """What a fleet run is to do: money is in the provider's currency, times are in seconds.

    ``most`` machines at a time, ``attempts`` for each cell, ``replacements`` for machines that die; ``lease`` is how
    long a machine lives without being heard of, ``patience`` how long one may be silent before it counts as dead.
    ``budget`` and ``limit`` stop the run. ``key`` is a hash over what is built, and how. ``found`` are cells that need
    no building, ``before`` is what an earlier process of the same run has written down; what cells say goes into files
    below ``logs``.
    """

    id: str
    command: str
    flavour: Flavour
    works: tuple[Work, ...]
    most: int
    spot: bool = False
    cache: Flavour | None = None
    patient: bool = True
    attempts: int = 3
    replacements: int = 3
    lease: float = 3600.0
    patience: float = 180.0
    budget: float | None = None
    limit: float | None = None
    up: float = 300.0
    down: float = 60.0
    key: str = ""
    found: tuple[CellRun, ...] = ()
    before: FleetRun | None = None
    logs: Path | None = None

    @property
    def hourly(self) -> float:
        """The price of a building machine's hour."""
        spot = self.flavour.spot_hourly
        return spot if self.spot and spot is not None else self.flavour.hourly

    def cost(self, machine: Machine, now: float) -> float:
        """Return what a machine has cost until ``now``; it is paid for from when it was asked for."""
        flavour = self.cache if self.cache is not None and machine.name.endswith(CACHE) else self.flavour
        end = now if machine.gone is None else machine.gone
        return price(machine.hourly, max(0.0, end - machine.asked), billed=flavour.billed)

    def machine_name(self, number: int | None) -> str:
        """Return the name of a machine, or without a number that of the cache's."""
        return f"kiln-{self.id}-{CACHE if number is None else number}"

    def log(self, config: str, attempt: int) -> Path | None:
        """Return where what a cell's build says is written down."""
        return None if self.logs is None else self.logs / f"{config}.{attempt}.log"
