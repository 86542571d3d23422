"""What a fleet run knows of itself, shared by all that decide for it: what it does goes through here, and is kept.

All is decided in one thread, from events and the time alone. What is asked of a provider or a machine is in the ledger
before it is asked, so a run that was killed is gone on with from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.fleet.orders import Bring
from kiln.fleet.queue import Queue
from kiln.fleet.yard import Yard
from kiln.model.fleet import FleetRun
from kiln.model.run import CellRun, CellState, MatrixReport

if TYPE_CHECKING:
    from kiln.errors import KilnError
    from kiln.fleet.mission import Mission
    from kiln.fleet.orders import Hands, Order
    from kiln.fleet.yard import Book
    from kiln.model.fleet import Work
    from kiln.model.watch import Watcher

RETRY = 20.0  # seconds before something is tried again that failed
TRIES = 3  # of the tear-down, and of bringing a cell home


class State:
    """A run as it stands: ``stop`` is why it ends before its time, ``errors`` why cells failed.

    ``full`` is since when there is no room on this computer's disk, ``waiting`` what is to be done once there is.
    """

    def __init__(self, mission: Mission, *, hands: Hands, book: Book, watcher: Watcher) -> None:
        self.mission = mission
        self.hands = hands
        self.book = book
        self.watcher = watcher
        self.yard = Yard(mission, book)
        self.queue = Queue((), cache=mission.cache is not None, patient=mission.patient)
        self.works = {work.config: work for work in mission.works}
        self.cells = {cell.config: cell for cell in (*mission.found, *map(_waits, mission.works))}
        self.errors: dict[str, KilnError] = {}
        self.stop: KilnError | None = None
        self.number = 0
        self.full: float | None = None
        self.waiting: list[tuple[float, Order]] = []
        self.started = hands.now() if mission.before is None else mission.before.started

    def report(self, finished: float | None = None) -> MatrixReport:
        """Return the run as it stands."""
        flavour = self.mission.flavour
        return MatrixReport(
            run=self.number,
            command=self.mission.command,
            started=self.started,
            finished=finished,
            machine=f"{self.mission.most} x {flavour.name} ({flavour.provider})",
            cores=flavour.cores * self.mission.most,
            jobs=self.mission.most,
            engine="rattler-build",
            container=f"fleet {self.mission.id}",
            cells=tuple(self.cells.values()),
        )

    def fleet(self) -> FleetRun:
        """Return the run as the ledger begins it."""
        flavour = self.mission.flavour
        return FleetRun(
            id=self.mission.id,
            provider=flavour.provider,
            type=flavour.type,
            started=self.started,
            finished=None,
            number=self.number,
            lives=True,
            key=self.mission.key,
        )

    def order(self, order: Order) -> None:
        """Have something done; machines that are none are not asked for."""
        if not isinstance(order, Bring) or order.machines:
            self.hands.begin(order)

    def change(self, cell: CellRun) -> None:
        """Keep a cell as it is now, and show it."""
        self.cells[cell.config] = cell
        self.book.change(self.number, cell)
        self.watcher.cell_changed(cell)


def _waits(work: Work) -> CellRun:
    return CellRun(config=work.config, state=CellState.WAITING, group=work.group, estimate=work.full)
