"""The end of a fleet run, whatever has ended it: what is finished comes home, and everything is given back."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kiln.errors import CredentialsRefused, MachinesLeft
from kiln.fleet.orders import AllGone, Collect, Down, Ended, Home, Left, Line, NoRoom, NotHome, Refused, Removed
from kiln.fleet.state import TRIES
from kiln.model.fleet import MachineState
from kiln.model.run import CellState

if TYPE_CHECKING:
    from collections.abc import Callable

    from kiln.fleet.machines import Machines
    from kiln.fleet.orders import Event
    from kiln.fleet.state import State

SETTLE = 300.0  # seconds in which finished packages still come home when a run is stopped
DOWN = 900.0  # seconds that one try of the tear-down may take


class Ending:
    """Ends a run: ``take`` takes an event as while it went on, ``alarm`` says when to look again at the latest."""

    def __init__(
        self, run: State, machines: Machines, *, take: Callable[[Event], None], alarm: Callable[[], float]
    ) -> None:
        self.run = run
        self.machines = machines
        self._take = take
        self._alarm = alarm

    def finish(self) -> None:
        """Bring home what is finished, give everything back, and write down how it all ended."""
        try:
            self._settle()
        finally:
            left = self._down()
            now = self.run.hands.now()
            for cell in [cell for cell in self.run.cells.values() if cell.state is CellState.RUNNING]:
                self.run.change(dataclasses.replace(cell, state=CellState.INTERRUPTED, finished=now))
            self.run.book.end(self.run.number)
            self.run.watcher.run_ended(self.run.report(finished=now))
            if left and self._never_let_in():
                for station in self.run.yard:
                    self.run.yard.keep(station, state=MachineState.REFUSED)
                self.run.book.end_fleet(self.run.mission.id)
            elif left:
                raise self._left(left)

    def _never_let_in(self) -> bool:
        """Whether the provider knew nobody from the start: it has made nothing, and will not say so either."""
        fresh = self.run.mission.before is None and all(station.machine.up is None for station in self.run.yard)
        return fresh and isinstance(self.run.stop, CredentialsRefused)

    def _settle(self) -> None:
        """Wait a while for what is on its way home."""
        until = self.run.hands.now() + SETTLE
        while self._on_their_way() and self.run.hands.now() < until:
            event = self.run.hands.hear(min(self._alarm(), until))
            if isinstance(event, Line | Ended | Home | NotHome | NoRoom):
                self._take(event)
            for station in self.run.yard:
                self.machines.try_again(station, self.run.hands.now())

    def _on_their_way(self) -> bool:
        """Whether cells come home at this moment: those that find no room here do not."""
        stuck = {order.config for _, order in self.run.waiting if isinstance(order, Collect)}
        return any(config not in stuck for station in self.run.yard for config in station.bring)

    def _down(self) -> str:
        """Give everything back; returns why something may be left, nothing when all is gone."""
        reason = ""
        for _ in range(TRIES):
            reason = self._torn_down(until=self.run.hands.now() + DOWN)
            if not reason:
                for station in self.run.yard:
                    if station.machine.state not in {MachineState.GONE, MachineState.REFUSED}:
                        self.run.yard.keep(station, state=MachineState.GONE, gone=self.run.hands.now())
                self.run.book.end_fleet(self.run.mission.id)
            if not reason or self._never_let_in():
                break
        return reason

    def _torn_down(self, until: float) -> str:
        self.run.order(Down())
        while self.run.hands.now() < until:
            try:
                event = self.run.hands.hear(until)
            except KeyboardInterrupt:
                continue  # this very work is what was asked for
            if isinstance(event, AllGone):
                return ""
            if isinstance(event, Left):
                return event.reason
            self._take_late(event)
        return "the tear-down did not end"

    def _take_late(self, event: Event | None) -> None:
        """Note what is heard while everything is given back: that a machine never was one, or what came home yet."""
        if isinstance(event, Refused) and event.machine in self.run.yard.stations:
            station = self.run.yard.stations[event.machine]
            self.run.yard.keep(station, state=MachineState.REFUSED, reason=event.reason, gone=self.run.hands.now())
        elif isinstance(event, Home | Removed):
            self._take(event)

    def _left(self, reason: str) -> MachinesLeft:
        run = self.run.mission.id
        return MachinesLeft(
            f"machines of the fleet run {run} may be left running, and cost money",
            why=reason,
            hint=f"kiln fleet down {run}, or the provider's own console",
            others=() if self.run.stop is None else (self.run.stop,),
        )
