"""A run over the matrix: each cell in a process of its own, several at a time, every change written down at once."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import queue
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln import command, files
from kiln.errors import BuildFailed, DiskFull, KilnError
from kiln.ledger import records
from kiln.model.run import CellRun, CellState, MatrixReport
from kiln.pipeline import contract
from kiln.pipeline.failures import error_from
from kiln.pipeline.machine import processor
from kiln.pipeline.order import pick, succeed
from kiln.pipeline.voice import heard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kiln.ledger import Ledger
    from kiln.model.watch import Watcher
    from kiln.pipeline.jobs import CellJob
    from kiln.pipeline.layout import Layout
    from kiln.pipeline.order import Planned
    from kiln.pipeline.plan import RunPlan

RESERVE = 1 << 20  # bytes of disk, for writing down that it is full
PATIENCE = 30.0  # seconds for a stopped cell to tidy up


@dataclass(slots=True, kw_only=True)
class Under:
    """A cell under way, as its process tells it."""

    cell: CellRun
    pid: int | None = None
    step: str = ""
    result: dict[str, Any] = field(default_factory=dict)


class Run:
    """A run under way: this thread alone decides, writes down and tells; others only listen to the processes."""

    def __init__(self, plan: RunPlan, *, ledger: Ledger, layout: Layout, watcher: Watcher) -> None:
        self.plan = plan
        self.ledger = ledger
        self.layout = layout
        self.watcher = watcher
        self.heard: queue.Queue[tuple[str, str | command.Result | KilnError]] = queue.Queue()
        self.under: dict[str, Under] = {}
        self.waiting: list[Planned] = list(plan.waiting)
        self.errors: dict[str, KilnError] = {}
        self.number = 0
        self.stopping = False
        self.cells: dict[str, CellRun] = {cell.config: cell for cell in plan.cells}
        self.started = time.time()

    def execute(self) -> MatrixReport:
        """Build all that waits, and return what became of every cell.

        Raises:
            KeyboardInterrupt: when the run was stopped; all is written down.
        """
        files.write_bytes(self.layout.reserve, bytes(RESERVE))
        self.number = self.ledger.begin(self.report())
        self.watcher.run_began(self.report())
        try:
            self._work()
        except KeyboardInterrupt:
            self._stop()
            raise
        finally:
            self._written(lambda: self.ledger.end(self.number))
            self.watcher.run_ended(self.report(finished=time.time()))
        return self.report(finished=time.time())

    def report(self, finished: float | None = None) -> MatrixReport:
        """Return the run as it stands."""
        plan = self.plan
        return MatrixReport(
            run=self.number,
            command=plan.command,
            started=self.started,
            finished=finished,
            machine=f"{platform.node()}, {processor()}",
            cores=plan.cores,
            jobs=plan.jobs,
            engine=plan.engine,
            container=plan.container,
            image=plan.image,
            rehearsal=plan.rehearsal,
            cells=tuple(self.cells.values()),
        )

    def _work(self) -> None:
        while self.waiting or self.under:
            while len(self.under) < self.plan.jobs and (planned := self._next()):
                self._begin(planned)
            self._take(*self.heard.get())

    def _next(self) -> Planned | None:
        leading = {under.cell.group for under in self.under.values() if under.cell.leader}
        return pick(self.waiting, leading if self.plan.compiles else ())

    def _begin(self, planned: Planned) -> None:
        """Start the process of a cell."""
        self.waiting.remove(planned)
        log = self.layout.log(self.number, planned.config)
        self._change(
            dataclasses.replace(self.cells[planned.config], state=CellState.RUNNING, started=time.time(), log=log)
        )
        self.under[planned.config] = Under(cell=self.cells[planned.config])
        job = dataclasses.replace(
            self.plan.jobs_of[planned.config], log=str(log), parent=os.getpid(), leader=planned.leader
        )
        threading.Thread(target=self._listen, args=(job,), daemon=True).start()

    def _listen(self, job: CellJob) -> None:
        """Run a cell's process and hand on what it says; the last thing handed on is how it ended."""
        config = job.config
        file = self.layout.job(config)
        try:
            job.write(file)
            words = (sys.executable, "-c", contract.MAIN.format(module="cell"), str(file))
            result = command.run(
                words,
                env={**self.plan.client, **self.plan.secrets},
                secrets=tuple(self.plan.secrets.values()),
                cwd=contract.HOUSE,
                on_line=lambda line: self.heard.put((config, line)),
            )
        except KilnError as error:
            self.heard.put((config, error))
        except OSError as error:
            self.heard.put((config, BuildFailed(f"the cell's process cannot be started: {error}")))
        else:
            self.heard.put((config, result))

    def _take(self, config: str, what: str | command.Result | KilnError) -> None:
        under = self.under[config]
        if not isinstance(what, str):
            self._end(config, under, what)
            return
        told = heard(what)
        if told is None:
            self.watcher.cell_line(config, under.step, what)
        else:
            self._hear(config, under, told)

    def _hear(self, config: str, under: Under, told: Mapping[str, Any]) -> None:
        """Take what a cell's process says itself."""
        match told["kind"]:
            case "hello":
                under.pid = told["pid"]
                if self.stopping:
                    self._signal(signal.SIGTERM)
            case "step":
                under.step = str(told["title"])
                self.watcher.cell_line(config, under.step, "")
            case "progress":
                self.watcher.cell_progress(config, records.progress(told))
            case "done":
                step = records.step({name: value for name, value in told.items() if name not in {"kind", "failed"}})
                self._change(dataclasses.replace(self.cells[config], steps=(*self.cells[config].steps, step)))
            case "result":
                under.result = dict(told)

    def _end(self, config: str, under: Under, how: command.Result | KilnError) -> None:
        """Write down what became of a cell; a process that did not say was killed."""
        del self.under[config]
        state = CellState.INTERRUPTED if self.stopping else CellState.FAILED
        told = under.result or {"state": state.value, "reason": _silent(how)}
        if told.get("error"):
            self.errors[config] = error_from(told["error"])
        if under.cell.leader and told["state"] != CellState.DONE.value:
            self._replace_leader(under.cell.group)
        self._change(
            dataclasses.replace(
                self.cells[config],
                state=CellState(told["state"]),
                finished=time.time(),
                reason=told["reason"],
                peak_memory=told.get("peak_memory"),
                packages=tuple(records.package(package) for package in told.get("packages", ())),
            )
        )

    def _replace_leader(self, group: str) -> None:
        """Let the next cell of a group lead, whose leader has failed."""
        self.waiting = list(succeed(self.waiting, group))
        for planned in self.waiting:
            if planned.group == group and planned.leader:
                self._change(dataclasses.replace(self.cells[planned.config], leader=True))

    def _change(self, cell: CellRun) -> None:
        self.cells[cell.config] = cell
        self._written(lambda: self.ledger.change(self.number, cell))
        self.watcher.cell_changed(cell)

    def _written(self, write: Callable[[], None]) -> None:
        """Write something down on a disk that a build has filled, too: in the room that was kept for this.

        Where even that is not enough, the run goes on without; what is lost is told as interrupted later.
        """
        try:
            write()
        except DiskFull:
            files.remove(self.layout.reserve)
            with contextlib.suppress(DiskFull):
                write()

    def _stop(self) -> None:
        """End every process, which tidy up after themselves, and take down what they say."""
        self.stopping = True
        until = time.monotonic() + PATIENCE
        self._signal(signal.SIGTERM)
        while self.under:
            try:
                self._take(*self.heard.get(timeout=1.0))
                if time.monotonic() > until:
                    self._signal(signal.SIGKILL)
            except queue.Empty:
                if time.monotonic() > until:
                    self._signal(signal.SIGKILL)
            except KeyboardInterrupt:
                self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for under in self.under.values():
            if under.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(under.pid, number)


def _silent(how: command.Result | KilnError) -> str:
    if isinstance(how, KilnError):
        return how.what
    if how.exit_code < 0:
        return f"its process was ended by {signal.Signals(-how.exit_code).name}"
    return f"its process ended with exit code {how.exit_code}: {how.tail[-500:]}"
