"""What a run over the matrix will do, decided and refused before anything is built."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln import files, render
from kiln.build import is_single
from kiln.console import duration
from kiln.model.run import CellRun, CellState
from kiln.pipeline import contract, done, order, preflight, premises, where
from kiln.pipeline.compiling import REMOTE_CACHE, group_of
from kiln.pipeline.jobs import CellJob
from kiln.pipeline.wishes import HOST
from kiln.resources import Resources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kiln.ledger import Ledger
    from kiln.model.cell import Cell
    from kiln.model.feedstock import Feedstock
    from kiln.pipeline.done import Finished, Inputs
    from kiln.pipeline.layout import Layout
    from kiln.pipeline.machine import Machine
    from kiln.pipeline.order import Planned
    from kiln.pipeline.preflight import Share
    from kiln.pipeline.premises import Premises
    from kiln.pipeline.wishes import Wishes

FOUND = "same recipe, variant, engine and image as before"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run that may begin: all cells in the order of work, those that wait, and the job of each of these.

    ``notes`` are sentences for whoever starts it, ``secrets`` variables that reach the compile steps alone,
    ``compiles`` whether there is one whose result later cells of a group find in a cache.
    """

    command: str
    jobs: int
    cores: int
    engine: str
    container: str
    image: str | None
    cells: tuple[CellRun, ...]
    waiting: tuple[Planned, ...]
    jobs_of: Mapping[str, CellJob]
    client: Mapping[str, str]
    seconds: float | None
    disk: int
    each: Share
    notes: tuple[str, ...]
    rehearsal: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    cache_bound: int
    compiles: bool = False


def prepare(
    feedstock: Feedstock,
    wishes: Wishes,
    *,
    machine: Machine,
    ledger: Ledger,
    layout: Layout,
    on_line: Callable[[str], None] | None = None,
) -> RunPlan:
    """Decide what is built, where, and with what; find what is finished.

    ``on_line`` hears of images while they are fetched.

    Raises:
        KilnError: UnknownConfig for a cell that is not there, UsageError and OutOfMemory when the machine has less than
            was asked for, IncompatibleVersions for a cell that cannot work, DiskFull, DownloadFailed for an image
            that cannot be had, MissingTool for an engine.
    """
    resources = Resources.here()
    known = premises.look_up(feedstock, wishes, machine, resources, on_line)
    finished = {} if _builds_anyway(wishes) else _finished(known.inputs, ledger, layout)
    groups = {cell.name: group_of(cell) for cell in known.cells if cell.name not in finished}
    waiting = order.arrange(groups, ledger.estimates(rehearsal=wishes.rehearsal), shared=not wishes.rehearsal)
    disk = _required_disk(known, tuple(each.config for each in waiting), ledger, layout)
    return RunPlan(
        command=wishes.command,
        jobs=wishes.jobs,
        cores=resources.cores,
        engine=wishes.engine,
        container=known.container,
        image=where.images_of(known.places),
        cells=(
            *(_found(cell, finished[cell.name]) for cell in known.cells if cell.name in finished),
            *map(_waits, waiting),
        ),
        waiting=waiting,
        jobs_of=_jobs(known, [cell for cell in known.cells if cell.name in groups]),
        client=wishes.client,
        seconds=order.whole_time(waiting, wishes.jobs),
        disk=disk,
        each=known.each,
        notes=known.notes,
        rehearsal=wishes.rehearsal,
        compiles=bool(waiting) and not wishes.rehearsal and _compiles(known),
        secrets={} if wishes.remote_cache is None else {REMOTE_CACHE: wishes.remote_cache},
        cache_bound=wishes.cache_bound,
    )


def _builds_anyway(wishes: Wishes) -> bool:
    """Whether a finished cell is built all the same."""
    return wishes.rebuild or wishes.from_step is not None or wishes.debug is not None


def _finished(inputs: Mapping[str, Inputs], ledger: Ledger, layout: Layout) -> dict[str, Finished]:
    found = {config: done.finished(ledger, layout, wanted) for config, wanted in inputs.items()}
    return {config: finished for config, finished in found.items() if finished is not None}


def _required_disk(known: Premises, waiting: tuple[str, ...], ledger: Ledger, layout: Layout) -> int:
    """Return the bytes of disk that cells take, once the machine is known to have what they need."""
    if not waiting:
        return 0
    caches = set(known.caches.values())
    return preflight.require(
        waiting, known.wishes, known.each, ledger=ledger, layout=layout, means=known.means, caches=caches
    )


def _compiles(known: Premises) -> bool:
    """Whether a recipe has a compile that its outputs share."""
    return not is_single(render.render(known.feedstock, known.cells[0]))


def _found(cell: Cell, finished: Finished) -> CellRun:
    return CellRun(
        config=cell.name, state=CellState.FOUND, group=group_of(cell), reason=FOUND, packages=finished.packages
    )


def _waits(planned: Planned) -> CellRun:
    return CellRun(
        config=planned.config,
        state=CellState.WAITING,
        group=planned.group,
        leader=planned.leader,
        estimate=planned.estimate,
    )


def _jobs(known: Premises, cells: list[Cell]) -> dict[str, CellJob]:
    """Return the jobs of cells, with the engine as a trial in one of their images has found it to work."""
    tried = where.settled(known.engine, known.places[cells[0].name]) if cells and known.wishes.fetch else None
    found = None if tried is None else tried.as_json()
    return {cell.name: _job(known, cell, found) for cell in cells}


def _job(known: Premises, cell: Cell, found: dict[str, Any] | None) -> CellJob:
    wishes, each, inputs = known.wishes, known.each, known.inputs[cell.name]
    means = known.means.get(cell.name)
    return CellJob(
        root=str(known.feedstock.root),
        config=cell.name,
        key=inputs.key,
        shared=inputs.shared,
        engine=wishes.engine,
        container=known.container,
        executable=wishes.executable,
        found=found,
        image=known.places[cell.name].image,
        options=wishes.options,
        cores=each.cores,
        memory=wishes.memory if known.engine is None else each.memory,
        variables=contract.variables(known.feedstock, cell.name, given=wishes.given, cores=each.cores, uid=os.getuid()),
        environment=dict(known.machine.environment),
        keep_failed=wishes.keep_failed,
        rebuild=wishes.rebuild,
        from_step=wishes.from_step,
        debug=wishes.debug,
        network=wishes.network,
        log="",
        group=group_of(cell),
        cache_key=known.caches[cell.name],
        share=each.memory,
        stall=wishes.stall,
        distdir=None if wishes.distdir is None else str(wishes.distdir.resolve()),
        mirror=wishes.mirror,
        **({} if means is None else means.as_job()),
    )


def as_text(plan: RunPlan) -> str:
    """Return a plan for a person: the order of work, then what it takes."""
    lines = [f"{_state(cell)}  {cell.config}" for cell in plan.cells]
    if plan.waiting:
        time = "unknown, nothing like it was built here yet" if plan.seconds is None else duration(plan.seconds)
        where = "on the host" if plan.container == HOST else f"in {plan.container}"
        share = f"{plan.each.cores} cores and {files.size_text(plan.each.memory)} of memory"
        lines += [
            "",
            f"{len(plan.waiting)} to build, {plan.jobs} at a time, {where}: each has {share}",
            f"disk for a while: {files.size_text(plan.disk)}; time: {time}",
        ]
    return "\n".join(lines)


def _state(cell: CellRun) -> str:
    if cell.state is CellState.FOUND:
        return "done   "
    took = "" if cell.estimate is None else f" {duration(cell.estimate)}"
    return f"build{took}{' first of ' + cell.group if cell.leader else ''}"
