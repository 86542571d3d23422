"""What a run over the matrix will do, decided and refused before anything is built."""

from __future__ import annotations

import dataclasses
import os
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln import container, expand, files, image, render
from kiln import rehearse as parts
from kiln.build import is_single
from kiln.console import duration
from kiln.container import Choice, images, trial
from kiln.errors import UsageError, nearest
from kiln.model.run import CellRun, CellState
from kiln.pipeline import choice, compatibility, contract, done, order, preflight, rehearsal
from kiln.pipeline.cell import CellJob
from kiln.pipeline.compiling import REMOTE_CACHE, cache_key, group_of, toolchain
from kiln.pipeline.outline import titles
from kiln.pipeline.workshop import Workshop
from kiln.resources import Resources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kiln.container import Engine
    from kiln.ledger import Ledger
    from kiln.model.cell import Cell
    from kiln.model.feedstock import Feedstock
    from kiln.pipeline.choice import Means
    from kiln.pipeline.done import Finished, Inputs
    from kiln.pipeline.layout import Layout
    from kiln.pipeline.machine import Machine
    from kiln.pipeline.order import Planned
    from kiln.pipeline.preflight import Share

HOST = "none"
STALL = 20 * 60.0  # seconds; a large link works all the while, so only what waits for something is told
CACHE_BOUND = 200_000_000_000  # bytes
FOUND = "same recipe, variant, engine and image as before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What was asked for: ``memory`` in bytes and ``cores`` for each job, ``jobs`` at a time.

    ``image``, ``executable`` and ``options`` are conda-forge's DOCKER_IMAGE, DOCKER_EXECUTABLE and
    CONDA_FORGE_DOCKER_RUN_ARGS, ``given`` further variables of the caller's that a build sees, ``client`` what a
    container engine's client needs, and pip for a ``rehearsal``.

    For compiles by Bazel: ``remote_cache`` is the address of a cache, which may hold a password, ``distdir`` a folder
    of downloads, the sources' archives among them, ``mirror`` the address under which these are looked for as well,
    ``stall`` the seconds without any event or work after which a compile is told to stand still, ``cache_bound`` the
    bytes that all caches on the disk may take together.
    """

    configs: tuple[str, ...]
    command: str
    jobs: int = 1
    engine: str = "rattler-build"
    container: str | None = None
    image: str | None = None
    executable: str | None = None
    options: tuple[str, ...] = ()
    cores: int | None = None
    memory: int | None = None
    rebuild: bool = False
    keep_failed: bool = False
    from_step: str | None = None
    debug: str | None = None
    network: str = "granted"
    fetch: bool = True
    rehearsal: bool = False
    given: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    remote_cache: str | None = field(default=None, repr=False)
    distdir: Path | None = None
    mirror: str | None = None
    stall: float = STALL
    cache_bound: int = CACHE_BOUND


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
    found: dict[str, Any] | None = None
    resources = Resources.here()
    each = preflight.share(resources, jobs=wishes.jobs, cores=wishes.cores, memory=wishes.memory)
    cells = [expand.read(feedstock, config) for config in wishes.configs]
    if wishes.from_step is not None:
        require_step(feedstock, cells, wishes.from_step, engine=wishes.engine)
    compatibility.require(feedstock, cells)
    place = _place(wishes)
    where, notes = _images(cells, wishes, place.engine, on_line)
    means = _means(cells, wishes, machine)
    inputs = _inputs(feedstock, cells, where, means, engine=wishes.engine)
    anyway = wishes.rebuild or wishes.from_step is not None or wishes.debug is not None
    finished = {} if anyway else _finished(inputs, ledger, layout)
    keys = {cell.name: cache_key(cell, where=_compilers(where[cell.name][1], machine)) for cell in cells}
    groups = {cell.name: group_of(cell) for cell in cells if cell.name not in finished}
    waiting = order.arrange(groups, ledger.estimates(rehearsal=wishes.rehearsal))
    disk = _require(ledger, layout, waiting, each, wishes, means, keys) if waiting else 0
    kind = HOST if place.engine is None else place.engine.kind.value
    if place.engine is not None and waiting and wishes.fetch:
        found = trial.workable(place.engine, str(where[waiting[0].config][0])).as_json()
    return RunPlan(
        command=wishes.command,
        jobs=wishes.jobs,
        cores=resources.cores,
        engine=wishes.engine,
        container=kind,
        image=", ".join(sorted({_pinned(*each) for each in where.values()} - {""})) or None,
        cells=(*(_found(cell, finished[cell.name]) for cell in cells if cell.name in finished), *map(_waits, waiting)),
        waiting=waiting,
        jobs_of={
            cell.name: dataclasses.replace(
                _job(feedstock, cell, inputs[cell.name], where[cell.name][0], each, wishes, machine, kind),
                found=found,
                cache_key=keys[cell.name],
                **_rehearsing(means.get(cell.name)),
            )
            for cell in cells
            if cell.name in groups
        },
        client=wishes.client,
        seconds=order.whole_time(waiting, wishes.jobs),
        disk=disk,
        each=each,
        notes=(*place.notes, *notes),
        rehearsal=wishes.rehearsal,
        compiles=bool(waiting) and not wishes.rehearsal and _compiles(feedstock, cells),
        secrets={} if wishes.remote_cache is None else {REMOTE_CACHE: wishes.remote_cache},
        cache_bound=wishes.cache_bound,
    )


def require_step(feedstock: Feedstock, cells: list[Cell], step: str, *, engine: str) -> None:
    """Refuse to begin at a step that a cell does not have.

    Raises:
        UsageError: with the steps that it has, those most like it first.
    """
    if engine != "rattler-build":
        raise UsageError(f"{engine} makes a cell in one step, so none can be chosen", hint="leave --from-step")
    for cell in cells:
        known = titles(render.finalise(render.render(feedstock, cell)))
        if step not in known:
            raise UsageError(
                f"{cell.name} has no step {step!r}",
                why=f"its steps are {', '.join(map(repr, known))}",
                hint=nearest(step, known) or "name one of these",
            )


def _place(wishes: Wishes) -> Choice:
    """Return where to build; a rehearsal is this machine's own affair unless a container is asked for.

    Raises:
        UsageError: for a rehearsal by another engine, whose compile nothing can stand in for.
    """
    if wishes.rehearsal and wishes.engine != "rattler-build":
        raise UsageError(f"a rehearsal is no affair of {wishes.engine}", hint="leave --engine, or --rehearse")
    if wishes.rehearsal and wishes.container in {None, HOST}:
        return Choice(engine=None, notes=())
    return container.choose(wishes.container, env=wishes.client, executable=wishes.executable)


def _means(cells: list[Cell], wishes: Wishes, machine: Machine) -> dict[str, Means]:
    """Return what each cell is rehearsed with; nothing for a build.

    Raises:
        UnsupportedPython: when none of the cells can be rehearsed on this machine for want of its Python.
    """
    if not wishes.rehearsal:
        return {}
    found = choice.means(cells, machine)
    if wishes.container in {None, HOST} and not any(each.interpreter for each in found.values()):
        for each in found.values():
            parts.find(each.wheels.python, first=(machine.python,), env=machine.environment)
    return found


def _rehearsing(means: Means | None) -> dict[str, Any]:
    """Return what a cell's job says of a rehearsal."""
    if means is None:
        return {}
    python = None if means.interpreter is None else str(means.interpreter.executable)
    home = None if means.portable is None else str(means.portable)
    return {"rehearsal": True, "python": python, "python_home": home}


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


def _images(
    cells: list[Cell], wishes: Wishes, engine: Engine | None, on_line: Callable[[str], None] | None
) -> tuple[dict[str, tuple[str | None, str]], tuple[str, ...]]:
    """Return each cell's image with its digest, fetched when it is not there, and what is to be said of them."""
    if engine is None:
        return {cell.name: (None, "host") for cell in cells}, ()
    digests: dict[str, str] = {}
    wishes, said = _with_base_image(wishes, engine)
    notes = [*said]
    for name in sorted({_image_of(cell, wishes) for cell in cells}):
        described = images.inspect(engine, name)
        if described is not None:
            digests[name] = images.digest_of(described)
        elif wishes.fetch:
            digests[name] = images.pull(engine, name, on_line=on_line)
        else:
            digests[name] = "unknown"
            notes.append(f"the image {name} is not here and would be fetched")
    return {cell.name: (name := _image_of(cell, wishes), digests[name]) for cell in cells}, tuple(notes)


def _pinned(name: str | None, digest: str) -> str:
    """Return an image's name with its digest, as far as either is known."""
    return name or "" if name is None or "@" in name or ":" not in digest else f"{name}@{digest}"


def _with_base_image(wishes: Wishes, engine: Engine) -> tuple[Wishes, tuple[str, ...]]:
    """Let a rehearsal run in kiln's base image where that is here: conda-forge's images lack its engine."""
    base = image.default_tag(image.SUITE)
    if not wishes.rehearsal or wishes.image is not None or images.inspect(engine, base) is None:
        return wishes, ()
    return dataclasses.replace(wishes, image=base), (
        f"rehearsing in {base}, which is here (DOCKER_IMAGE names another)",
    )


def _image_of(cell: Cell, wishes: Wishes) -> str:
    name = wishes.image or cell.image
    if name is None:
        raise UsageError(
            f"{cell.name} names no image to build in",
            hint="docker_image in recipe/conda_build_config.yaml, the variable DOCKER_IMAGE, or --container none",
        )
    return name


def _inputs(
    feedstock: Feedstock,
    cells: list[Cell],
    where: Mapping[str, tuple[str | None, str]],
    means: Mapping[str, Means],
    *,
    engine: str,
) -> dict[str, Inputs]:
    recipe = done.recipe_digest(feedstock)
    return {
        cell.name: done.inputs(
            feedstock,
            cell.name,
            recipe=recipe,
            engine=engine,
            where=where[cell.name][1],
            rehearsed_with=means[cell.name].key if cell.name in means else None,
        )
        for cell in cells
    }


def _finished(inputs: Mapping[str, Inputs], ledger: Ledger, layout: Layout) -> dict[str, Finished]:
    found = {config: done.finished(ledger, layout, wanted) for config, wanted in inputs.items()}
    return {config: finished for config, finished in found.items() if finished is not None}


def _compiles(feedstock: Feedstock, cells: list[Cell]) -> bool:
    """Whether a recipe has a compile that its outputs share."""
    return not is_single(render.render(feedstock, cells[0]))


def _require(
    ledger: Ledger,
    layout: Layout,
    waiting: tuple[Planned, ...],
    each: Share,
    wishes: Wishes,
    means: Mapping[str, Means],
    caches: Mapping[str, str],
) -> int:
    """Refuse to begin without enough memory and disk; returns the bytes of disk that the run takes.

    Where the disk is short, caches of compiles that no cell of the run uses go first.
    """
    configs = tuple(planned.config for planned in waiting)
    peaks = {config: peak for config, peak in ledger.peaks(rehearsal=wishes.rehearsal).items() if config in configs}
    preflight.require_memory(peaks, each, jobs=wishes.jobs)
    if wishes.rehearsal:
        return _require_room_to_rehearse(layout, {config: means[config] for config in configs}, wishes.jobs)
    used = {step.config: int(step.detail.get("disk", 0)) for step in reversed(ledger.latest(done.TITLE))}
    disk = preflight.disk_needed(used, configs, jobs=wishes.jobs)
    if wishes.fetch:
        layout.compile_caches.make_room(disk, keep=set(caches.values()))
    files.require_room(layout.root, disk, for_what=f"building {wishes.jobs} at a time")
    return disk


def _require_room_to_rehearse(layout: Layout, means: Mapping[str, Means], jobs: int) -> int:
    missing = choice.missing_size(means, Workshop(cell=layout.work(min(means))).wheels)
    upstream = max(each.wheels.upstream.size for each in means.values())
    disk = rehearsal.room_needed(missing, upstream, jobs=min(jobs, len(means)))
    fetched = f" with {files.size_text(missing)} to fetch" if missing else ""
    files.require_room(layout.root, disk, for_what=f"rehearsing {', '.join(means)}{fetched}")
    return disk


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


def _job(
    feedstock: Feedstock,
    cell: Cell,
    inputs: Inputs,
    image_name: str | None,
    each: Share,
    wishes: Wishes,
    machine: Machine,
    kind: str,
) -> CellJob:
    variables = contract.variables(feedstock, cell.name, given=wishes.given, cores=each.cores, uid=os.getuid())
    return CellJob(
        root=str(feedstock.root),
        config=cell.name,
        key=inputs.key,
        shared=inputs.shared,
        engine=wishes.engine,
        container=kind,
        executable=wishes.executable,
        image=image_name,
        options=wishes.options,
        cores=each.cores,
        memory=wishes.memory if kind == HOST else each.memory,
        variables=variables,
        environment=dict(machine.environment),
        keep_failed=wishes.keep_failed,
        rebuild=wishes.rebuild,
        from_step=wishes.from_step,
        debug=wishes.debug,
        network=wishes.network,
        log="",
        group=group_of(cell),
        cache_key="",
        share=each.memory,
        stall=wishes.stall,
        distdir=None if wishes.distdir is None else str(wishes.distdir.resolve()),
        mirror=wishes.mirror,
    )


def _compilers(where: str, machine: Machine) -> str:
    """The digest of the image that a cell is compiled in, or a hash of the machine's own compilers."""
    return toolchain(machine.environment.get("PATH", os.defpath)) if where == "host" else where


def run_arguments(text: str) -> tuple[str, ...]:
    """Return the words of CONDA_FORGE_DOCKER_RUN_ARGS.

    Raises:
        UsageError: when a quote is not closed.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"CONDA_FORGE_DOCKER_RUN_ARGS is {text!r}", why=str(error)) from error
