"""The cost of the live view: a run of twelve configs with busy logs, shown on a real terminal that somebody reads."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import TYPE_CHECKING

from kiln.run.view.live import LiveView
from kiln.state.results import ConfigRun, ConfigState
from tests.fleets import NullObserver
from tests.unit.run.view.run import a_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from kiln.state.results import RunObserver
    from tests.bench.timing import Row

CONFIGS, SECONDS, LINES = 12, 6.0, 100  # lines a second of each config


def rows() -> list[Row]:
    """Return the share of one core that the live view takes, next to reporting the same to nobody."""
    with terminal() as stream, LiveView(stream) as view:
        cost = share_of_core(view) - share_of_core(
            NullObserver()
        )  # which looks away: what is left is the cost of reporting
    what = f"live view, {CONFIGS} configs, {CONFIGS * LINES:,} lines/s"
    return [(what, f"{100 * cost:.2f} % of a core", "1 % of a core")]


def share_of_core(watcher: RunObserver) -> float:
    """Processor time per second while a run is reported."""
    configs = tuple(
        ConfigRun(config=f"config{number}", state=ConfigState.RUNNING, group="", started=time.time(), estimate=600.0)
        for number in range(CONFIGS)
    )
    report = a_run(*configs, started=time.time(), jobs=CONFIGS)
    watcher.run_began(report)
    began, used = time.monotonic(), time.process_time()
    told = 0
    while (passed := time.monotonic() - began) < SECONDS:
        while told < passed * LINES:
            for config in configs:
                watcher.output_line_received(
                    config.config, "compile", f"[{told} / 9,999] Compiling \x1b[32msome/long/path/{told}.cc"
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
