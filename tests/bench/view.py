"""What the live view costs: a run of twelve cells with busy logs, shown on a real terminal that somebody reads."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import TYPE_CHECKING

from kiln.console import LiveView
from kiln.model.run import CellRun, CellState, MatrixReport
from tests.fleets import Nobody

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from kiln.model.watch import Watcher
    from tests.bench.timing import Row

CELLS, SECONDS, LINES = 12, 6.0, 100  # lines a second of each cell


def rows() -> list[Row]:
    """The share of one core that the live view takes, next to telling the same to nobody."""
    with terminal() as stream, LiveView(stream) as view:
        cost = share_of_core(view) - share_of_core(Nobody())  # which looks away: what is left is the cost of telling
    what = f"live view, {CELLS} cells, {CELLS * LINES:,} lines/s"
    return [(what, f"{100 * cost:.2f} % of a core", "1 % of a core")]


def share_of_core(watcher: Watcher) -> float:
    """Processor time per second while a run is told."""
    cells = tuple(
        CellRun(config=f"cell{number}", state=CellState.RUNNING, group="", started=time.time(), estimate=600.0)
        for number in range(CELLS)
    )
    report = MatrixReport(
        run=1,
        command="",
        started=time.time(),
        finished=None,
        machine="",
        cores=1,
        jobs=CELLS,
        engine="",
        container="",
        cells=cells,
    )
    watcher.run_began(report)
    began, used = time.monotonic(), time.process_time()
    told = 0
    while (passed := time.monotonic() - began) < SECONDS:
        while told < passed * LINES:
            for cell in cells:
                watcher.cell_line(
                    cell.config, "compile", f"[{told} / 9,999] Compiling \x1b[32msome/long/path/{told}.cc"
                )
            told += 1
        time.sleep(0.01)
    used = time.process_time() - used
    watcher.run_ended(report)
    return used / passed


@contextlib.contextmanager
def terminal() -> Iterator[IO[str]]:
    """A terminal, with a process of its own that reads what is written there."""
    ours, theirs = os.openpty()
    reader = subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(ours)
    try:
        with open(theirs, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor has no path
            yield stream
    finally:
        reader.wait(10)
