"""One cell in a process of its own, started by the run over the matrix.

It holds the cell's lock, has the cell built on the host or in a container, puts the packages of a cell that is finished
into the channel, and writes the cell down. It ends with the run that started it, and what it started ends with it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import command, errors, expand, files, load, render
from kiln import rehearse as parts
from kiln.build import callers_variables, conda_build, faults
from kiln.container import Container, Engine, trial
from kiln.errors import AlreadyRunning, BuildFailed, KilnError, MissingTool, OutOfMemory, excerpt
from kiln.ledger import Ledger, records
from kiln.model.container import Limits, Mount, User
from kiln.model.run import CellState
from kiln.pipeline import compiling, contract, done, foreign, offline, rehearsal
from kiln.pipeline.builder import Job
from kiln.pipeline.choice import python_of
from kiln.pipeline.cuda import cuda_of
from kiln.pipeline.done import Inputs
from kiln.pipeline.layout import Layout
from kiln.pipeline.listen import Log, Watched
from kiln.pipeline.outline import needs_network
from kiln.pipeline.process import end_orphans, memory_kills
from kiln.pipeline.voice import MARK, Voice, say
from kiln.pipeline.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kiln.model.artifact import PackageReport
    from kiln.model.cell import Cell
    from kiln.model.container import ContainerRun, Ended
    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import Rendered

TIDYING = 30.0  # seconds that the processes of a killed run may take to end
STATES = {
    "OutOfMemory": CellState.OUT_OF_MEMORY,
    "DiskFull": CellState.DISK_FULL,
    "AlreadyRunning": CellState.ELSEWHERE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CellJob:
    """A cell to build: ``container`` is an engine's name, or ``none`` for the host; ``memory`` in bytes.

    ``found`` is the engine as the run has found it to work, which takes many times longer than to tell it.
    ``variables`` are conda-forge's, ``environment`` what a build on the host has besides; free of secrets, both.
    ``parent`` is the run's process. ``debug`` names an output that is to be made ready for a person, not built.
    ``python`` is an interpreter of this machine for a rehearsal, ``python_home`` its folder where a container can be
    given it.
    ``parent`` is the run's process. ``group`` are the cells that share a compile, whose ``leader`` is built first,
    ``cache_key`` names their cache, and ``share`` is the memory in bytes that a compile should do with, everywhere.
    """

    root: str
    config: str
    key: str
    shared: str
    engine: str
    container: str
    executable: str | None = None
    found: dict[str, Any] | None = None
    image: str | None = None
    options: tuple[str, ...] = ()
    cores: int
    memory: int | None = None
    variables: dict[str, str]
    environment: dict[str, str] = field(repr=False)
    keep_failed: bool = False
    rebuild: bool = False
    from_step: str | None = None
    parent: int | None = None
    rehearsal: bool = False
    python: str | None = None
    python_home: str | None = None
    debug: str | None = None
    network: str = "granted"
    log: str
    group: str
    leader: bool = False
    cache_key: str
    share: int
    stall: float
    distdir: str | None = None
    mirror: str | None = None

    def write(self, file: Path) -> None:
        """Write the job into a file."""
        files.write_text(file, json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, file: Path) -> CellJob:
        """Return the job that a file holds, and remove the file."""
        fields = json.loads(file.read_text())
        file.unlink()
        return cls(**{**fields, "options": tuple(fields["options"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the building process ended: ``error`` is None when it wrote its result."""

    error: KilnError | None
    peak_memory: int | None
    starved: bool


def main(job_file: str) -> None:
    """Build the cell that a job file names, and tell what became of it as the last line."""
    job = CellJob.read(Path(job_file))
    command.die_with_parent(signal.SIGTERM, parent=job.parent)
    say("hello", pid=os.getpid())
    with command.termination_as_interrupt():
        try:
            with files.no_room_as_disk_full(Path(job.root)):
                told = CellBuild.of(job).run()
        except KeyboardInterrupt:
            told = {"state": CellState.INTERRUPTED.value, "reason": "stopped"}
        except KilnError as error:
            told = failure(error)
    say("result", **told)
    os._exit(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBuild:
    """A cell under way in this process."""

    job: CellJob
    feedstock: Feedstock
    layout: Layout
    ledger: Ledger

    @classmethod
    def of(cls, job: CellJob) -> CellBuild:
        """Find the feedstock and open the ledger."""
        feedstock = load.find(Path(job.root))
        layout = Layout.of(feedstock, rehearsal=job.rehearsal)
        return cls(job=job, feedstock=feedstock, layout=layout, ledger=Ledger(layout.ledger))

    def run(self) -> dict[str, Any]:
        """Build the cell, alone: nobody else builds it meanwhile."""
        lock = self.layout.lock(self.job.config)
        gone = lambda: self.ledger.abandoned(self.job.config, rehearsal=self.job.rehearsal)  # noqa: E731 - read where it is used
        with done.waiting(lock, while_true=gone, seconds=TIDYING):
            end_orphans(self.folder)
            try:
                return self.build()
            finally:
                end_orphans(self.folder)

    @property
    def folder(self) -> Path:
        """Where the cell is built."""
        return self.layout.work(self.job.config)

    def build(self) -> dict[str, Any]:
        """Build the cell and put its packages into the channel."""
        start = time.monotonic()
        if self.job.debug is None and not self.job.rehearsal:
            files.remove(self.layout.canary(self.job.config))
        if self.job.rebuild:
            files.remove(self.folder)
        result_file = self.folder / "result.json"
        files.remove(result_file)
        what_for = f"{self.job.group}, {self.job.image or 'this machine'}"
        with self.layout.compile_caches.using(self.job.cache_key, what_for):
            outcome = self.outcome()
        result = self.result(result_file, outcome)
        common = {"steps": result["steps"], "peak_memory": outcome.peak_memory}
        error = self.error_of(result, outcome)
        if error is not None:
            if self.is_foreign and not self.job.keep_failed:
                files.remove(self.folder)
            return {**failure(error), **common}
        if self.job.debug is not None:
            return {"state": CellState.DONE.value, "reason": "", "debug": result["debug"], **common}
        packages = self.publish(result["packages"], time.monotonic() - start, outdated=result.get("outdated", False))
        return {
            "state": CellState.DONE.value,
            "reason": "",
            "packages": [records.package_as_json(package) for package in packages],
            **common,
        }

    def result(self, file: Path, outcome: Outcome) -> dict[str, Any]:
        """Return what the building process told of what it made; of another engine's, what it left."""
        if file.is_file():
            found: dict[str, Any] = json.loads(file.read_text())
            return found
        left = foreign.made(self.folder, self.job.config) if self.is_foreign and outcome.error is None else []
        if self.is_foreign and outcome.error is None and not left:
            raise BuildFailed(f"{self.job.engine} has ended well, but left no package", hint=f"read {self.job.log}")
        return {"steps": [], "error": None, "packages": left}

    @property
    def is_foreign(self) -> bool:
        """Whether another engine than rattler-build makes the packages, by a script instead of kiln's own process."""
        return self.job.engine != "rattler-build"

    def publish(self, packages: list[dict[str, Any]], seconds: float, *, outdated: bool) -> tuple[PackageReport, ...]:
        """Put the packages into the channel, write the cell down, and clear up.

        What is ``outdated`` in part is not what the recipe says now: it is written down under a key that no cell ever
        asks for, so the next run builds it anew, and its folder stays for another ``--from-step``.
        """
        made = [(self.folder / told["artifact"]["path"], told) for told in packages]
        wanted = Inputs(shared=self.job.shared, key=self.job.key)
        if self.job.rehearsal:
            return done.remember(self.ledger, self.layout, self.job.config, made, wanted, seconds=seconds)
        if outdated:
            never = f"outdated {secrets.token_hex(16)}"
            wanted = Inputs(shared=never, key=never)
        disk = files.size_on_disk(self.folder)
        placed = done.publish(self.ledger, self.layout, self.job.config, made, wanted, seconds=seconds, disk=disk)
        self.layout.canary(self.job.config).touch()
        if not outdated:
            files.remove(self.folder)
        return placed

    def error_of(self, result: Mapping[str, Any], outcome: Outcome) -> KilnError | None:
        """Return why the cell failed: for want of memory when processes of it were ended for that."""
        error = outcome.error
        if result["error"] is not None:
            told = result["error"]
            kind: type[KilnError] = getattr(errors, told["type"])
            step = f"{told['step']}: " if told["step"] else ""
            error = kind(f"{step}{told['what']}", why=told["why"], hint=told["hint"])
        if error is None or not outcome.starved:
            return error
        limit = "this machine" if self.job.memory is None else files.size_text(self.job.memory)
        return OutOfMemory(
            f"{self.job.config} needed more memory than {limit}",
            why=error.what,
            hint="give it more with --memory, run fewer at once with -j, or lower CPU_COUNT",
        )

    def outcome(self) -> Outcome:
        """Run the building process to its end, in a container or on the host."""
        feedstock = self.feedstock
        rendered = render.render(feedstock, expand.read(feedstock, self.job.config))
        with Log(Path(self.job.log)) as log:
            if self.job.rehearsal:
                self.fetch(rendered.cell)
            if self.is_foreign:
                log.hear(f"{MARK}{json.dumps({'kind': 'step', 'title': self.job.engine})}")
            if self.job.container == "none":
                return self.on_host(log, rendered)
            return self.in_container(log, rendered)

    def fetch(self, cell: Cell) -> None:
        """Bring the wheels of a rehearsal here, by pip with its own settings, which nothing else gets to see."""
        shop = Workshop(cell=self.folder)
        shop.open()
        wheels = parts.plan(python=python_of(cell), cuda=cuda_of(cell))
        rehearsal.fetch(wheels, shop, env=os.environ, log=Path(self.job.log), voice=Voice())

    @property
    def module(self) -> str:
        """Whose ``main`` the building process runs."""
        return "rehearsal" if self.job.rehearsal else "builder"

    def write_script(self, rendered: Rendered, seen: Callable[[Path], Path]) -> Path:
        """Write the script of another engine, with paths as it sees them."""
        return foreign.prepare(
            self.feedstock,
            rendered,
            self.folder,
            self.layout.cache,
            engine=self.job.engine,
            variables=self.job.variables,
            seen=seen,
            debug=self.job.debug,
        )

    def on_host(self, log: Log, rendered: Rendered) -> Outcome:
        """Build on this machine."""
        words: tuple[str, ...]
        if self.is_foreign:
            words = ("bash", str(self.write_script(rendered, lambda path: path)))
        else:
            self.write_job(rendered, lambda path: path)
            words = (sys.executable, "-c", contract.MAIN.format(module=self.module), str(self.folder / "job.json"))
        environment = {**self.on_host_environment(), **scripted(rendered), **self.secrets}
        kills = memory_kills()
        with Watched(self.job.memory) as watched:
            ended = command.run(
                words,
                env=environment,
                cwd=contract.HOUSE,
                on_line=log.hear,
                secrets=tuple(self.secrets.values()),
            )
        if self.is_foreign and ended.exit_code == contract.NO_ENGINE:
            raise MissingTool(
                f"{conda_build.PROGRAMS[self.job.engine]} is not on this machine",
                why=f"PATH is {environment['PATH']!r}",
                hint=f"install the package {conda_build.PACKAGES[self.job.engine]}, or take another --engine",
            )
        error = ended_badly("the build's process", ended.exit_code, ended.tail)
        starved = watched.exceeded or memory_kills() > kills
        return Outcome(error=None if ended.ok else error, peak_memory=watched.most or None, starved=starved)

    def on_host_environment(self) -> dict[str, str]:
        """What a build on this machine finds in its environment, kiln's own programs among them."""
        own = str(Path(sys.executable).parent)
        path = f"{own}{os.pathsep}{self.job.environment.get('PATH', os.defpath)}"
        return {**self.job.environment, **self.job.variables, "PATH": path}

    def in_container(self, log: Log, rendered: Rendered) -> Outcome:
        """Build in a container."""
        assert self.job.found is not None, "the run has found an engine"
        engine = trial.trust(Engine.from_json(self.job.found, environment=os.environ))
        plan = self.container_run(engine, self.argv_inside(rendered), rendered)
        ended = self.both(engine, plan, log) if self.scripts_apart(rendered) else run_in(Container(engine, plan), log)
        if ended.exit_code == contract.NO_ENGINE:
            raise no_engine(self.job.image, conda_build.PACKAGES.get(self.job.engine, "py-rattler-build"))
        error = ended_badly("the container", ended.exit_code, ended.tail)
        return Outcome(error=None if ended.ok else error, peak_memory=ended.peak_memory, starved=ended.memory_kills > 0)

    def scripts_apart(self, rendered: Rendered) -> bool:
        """Whether scripts run in a container of their own: where the engine needs the network, and they do not."""
        within = self.job.container != "none" and not (self.is_foreign or self.job.rehearsal)
        return within and self.job.network != "always" and (needs_network(rendered) or bool(self.secrets))

    def both(self, engine: Engine, plan: ContainerRun, log: Log) -> Ended:
        """Run the engine's container, and beside it one without the network for the scripts."""
        offline.open_queue(self.queue)
        apart = dataclasses.replace(plan, network=False, argv=offline.argv(contract.within(self.queue, self.feedstock)))
        quiet = Container(engine, apart)
        with ThreadPoolExecutor(1) as beside:
            scripts = beside.submit(run_in, quiet)
            scripts.add_done_callback(lambda _: offline.close(self.queue))  # nobody would run what the engine waits for
            try:
                ended = run_in(Container(engine, plan), log)
                offline.close(self.queue)
                wait([scripts], timeout=TIDYING)
            finally:
                offline.close(self.queue)
                if not scripts.done():  # the engine has died, and a script goes on: it ends with its container
                    quiet.stop()
        other = scripts.result()
        peaks = [peak for peak in (ended.peak_memory, other.peak_memory) if peak is not None]
        kills = ended.memory_kills + other.memory_kills
        return dataclasses.replace(ended, peak_memory=max(peaks, default=None), memory_kills=kills)

    @property
    def queue(self) -> Path:
        """Where scripts are handed over."""
        return self.folder / "scripts"

    def container_run(self, engine: Engine, argv: tuple[str, ...], rendered: Rendered) -> ContainerRun:
        """Return the container in which a program of the cell's runs."""
        assert self.job.image is not None, "a container has an image"
        return contract.run_inside(
            self.feedstock,
            argv,
            image_name=self.job.image,
            environment=self.job.variables,
            secrets={**scripted(rendered), **self.secrets},
            user=User(uid=os.getuid(), gid=os.getgid()),
            limits=Limits(
                cores=None if engine.lacks else self.job.cores,
                memory=None if engine.lacks else self.job.memory,
                processes=None if engine.lacks else contract.PROCESSES,
            ),
            network=self.network(rendered),
            options=(*(contract.NO_ENTRY if self.is_foreign else ()), *self.job.options),
            mounts=(
                *self.compile_mounts(),
                *(Mount(source=Path(home), target=home) for home in (self.job.python_home,) if home),
            ),
        )

    @property
    def cache(self) -> Path:
        """Bazel's cache for this cell's compile."""
        return self.layout.compile_caches.folder(self.job.cache_key)

    def network(self, rendered: Rendered) -> bool:
        """Whether a container of this cell reaches the network."""
        return self.is_foreign or bool(self.secrets) or (not self.job.rehearsal and needs_network(rendered))

    def compile_mounts(self) -> tuple[Mount, ...]:
        """Return what a container sees for its compile, of which a rehearsal has none."""
        if self.job.rehearsal:
            return ()
        caches = self.layout.compile_caches
        caches.prepare(self.job.cache_key)
        return contract.compile_mounts(self.feedstock, caches, self.job.cache_key, self.distdir)

    @property
    def distdir(self) -> Path | None:
        """The folder of downloads."""
        return None if self.job.distdir is None else Path(self.job.distdir)

    @property
    def secrets(self) -> dict[str, str]:
        """What reaches the compile step by its environment alone; other engines hand nothing of the kind to scripts."""
        compiles = not (self.is_foreign or self.job.rehearsal)
        return {} if not compiles else {name: os.environ[name] for name in compiling.secrets(os.environ)}

    def compile_settings(self, *, on_host: bool) -> dict[str, str]:
        """Return what the compile step is told of its place."""
        distdir = self.distdir if on_host or self.distdir is None else contract.DISTDIR_INSIDE
        return {
            compiling.DISK_CACHE: str(self.cache if on_host else contract.CACHE_INSIDE),
            compiling.CPUS: str(self.job.cores),
            compiling.MEMORY: str(self.job.share // 10**6),
            **({} if distdir is None else {compiling.DISTDIR: str(distdir)}),
        }

    def argv_inside(self, rendered: Rendered) -> tuple[str, ...]:
        """Write what the program in the container reads, and return the program."""

        def seen(path: Path) -> Path:
            return contract.within(path, self.feedstock)

        if self.is_foreign:
            return ("bash", str(seen(self.write_script(rendered, seen))))
        self.write_job(rendered, seen, apart=self.scripts_apart(rendered))
        return contract.start(seen(self.folder / "job.json"), module=self.module)

    def taken(self, rendered: Rendered) -> list[dict[str, Any]]:
        """Return the packages that another cell has made, as JSON values; to --rebuild, a leader makes them anew."""
        if self.job.rehearsal or (self.job.rebuild and self.job.leader):
            return []
        wanted = Inputs(shared=self.job.shared, key=self.job.key)
        outputs = render.finalise(rendered).outputs
        found = done.taken(self.ledger, self.layout, outputs, wanted, self.job.config)
        return [records.package_as_json(report) for report in found]

    def write_job(self, rendered: Rendered, seen: Callable[[Path], Path], *, apart: bool = False) -> None:
        """Write the building process's own job, with paths as it sees them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.layout.cache.mkdir(parents=True, exist_ok=True)
        on_host = self.job.container == "none"
        Job(
            root=seen(self.feedstock.root),
            recipe=self.feedstock.recipe if on_host else contract.RECIPE,
            config=self.job.config,
            folder=seen(self.folder),
            cache=seen(self.layout.cache),
            result=seen(self.folder / "result.json"),
            extra={name: self.job.variables[name] for name in contract.EXTRA if name in self.job.variables},
            keep_failed=self.job.keep_failed,
            compile=self.compile_settings(on_host=on_host),
            stall=self.job.stall,
            taken=self.taken(rendered),
            channel=seen(self.layout.root),
            network=on_host or self.network(rendered),
            from_step=self.job.from_step,
            parent=os.getpid() if on_host else None,
            python=Path(self.job.python) if self.job.python and (on_host or self.job.python_home) else None,
            image=self.job.image,
            debug=self.job.debug,
            queue=seen(self.queue) if apart else None,
            mirror=self.job.mirror,
        ).write(self.folder / "job.json")


def scripted(rendered: Rendered) -> dict[str, str]:
    """Return the caller's variables that the recipe wants, so far as they are set; this process has them, no file."""
    return {name: os.environ[name] for name in callers_variables(rendered) if name in os.environ}


def run_in(container: Container, log: Log | None = None) -> Ended:
    """Run a container to its end, and remove it."""
    with container as box:
        return box.run(on_line=None if log is None else log.hear)


def failure(error: KilnError) -> dict[str, Any]:
    """Return what became of a cell that failed, as it is told."""
    kind = type(error).__name__
    told = {"type": kind, "what": error.what, "why": error.why, "hint": error.hint}
    state = STATES.get(kind, CellState.FAILED)
    reason = f"another process builds it: {error.what}" if isinstance(error, AlreadyRunning) else error.what
    return {"state": state.value, "reason": reason, "error": told}


def ended_badly(who: str, exit_code: int, tail: str) -> KilnError:
    """Return the failure of a building process that could not even say why it failed: on a full disk, for one."""
    kind = faults.kind("", tail)
    return kind.error(f"{who} ended with exit code {exit_code}", why=f"it said\n{excerpt(tail)}", hint=kind.hint)


def no_engine(image: str | None, package: str) -> MissingTool:
    """Return the failure of an image that has no engine."""
    return MissingTool(
        f"the image {image} has no {package}",
        why="the engine that builds in a container must be in its image",
        hint="name an image that has it with DOCKER_IMAGE ('kiln image base' makes one with rattler-build alone), take "
        "another --engine, or --container none",
    )
