"""The rate of state changes that the ledger records from eight processes at once, and whether it keeps all of them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import kiln.state.ledger.json_columns  # noqa: F401 - the process that changes configs has begun their run, with this
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import ConfigRun, ConfigState, MatrixReport
from tests.bench.timing import ROOT
from tests.unit.run.view.run import a_run

if TYPE_CHECKING:
    from tests.bench.timing import Row

WRITERS, CHANGES, LEAST = 8, 500, 1_000  # changes of each writer; a second
STATES = (ConfigState.RUNNING, ConfigState.WAITING)


def rows() -> list[Row]:
    """Let each writer change a config of its own; the clock runs from when all are ready until the last has ended."""
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
        place = Path(folder) / "ledger.sqlite"
        with Ledger(place) as ledger:
            run = ledger.begin_run(report())
            took = written(place, run)
            ended = ledger.run_report(run)
    kept = sum(1 + int(config.started) for config in ended.configs if config.started is not None) if ended else 0
    rate = WRITERS * CHANGES / took
    return [
        (f"ledger, changes from {WRITERS} writers", f"{rate:,.0f} /s", f"{LEAST:,} /s at least"),
        ("  of these lost", f"{WRITERS * CHANGES - kept:,}", "0"),
    ]


def names() -> list[str]:
    """Return the configs' names."""
    return [f"config{number}" for number in range(WRITERS)]


def report() -> MatrixReport:
    """Return a run that begins, with a config for each writer."""
    configs = tuple(ConfigRun(config=name, state=ConfigState.WAITING, group="cpu") for name in names())
    return a_run(*configs, run=0, started=time.time(), jobs=WRITERS)


def written(place: Path, run: int) -> float:
    """Start the writers, let them go at once, and return the seconds until all have ended."""
    argv = (sys.executable, "-m", "tests.bench.ledger", str(place), str(run))
    writers = [
        subprocess.Popen((*argv, name), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for name in names()
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    began = time.monotonic()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
    ended = [writer.wait() for writer in writers]
    if any(ended):
        raise RuntimeError(f"a writer failed: {ended}")
    took = time.monotonic() - began
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.close()
    return took


def write(place: Path, run: int, name: str) -> None:
    """Say that all is ready, wait for the word, and write."""
    with Ledger(place) as ledger:
        print(flush=True)
        sys.stdin.read()
        for number in range(CHANGES):
            ledger.update_config(
                run, ConfigRun(config=name, state=STATES[number % 2], group="cpu", started=float(number))
            )


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
