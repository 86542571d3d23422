"""One cell built, installed and tested by a process of its own, on the host or in a container.

The job names folders as this process sees them. What came of it is written to the job's result file last of all; every
step that ended well is found again by the next attempt as long as nothing it was made of has changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kiln import bazel, build, check, command, expand, files, load, render
from kiln.build.origins import Origins
from kiln.channel import Channel, machine_virtual_packages
from kiln.check import wheel as check_wheel
from kiln.check.wheel import Wheel
from kiln.errors import BuildFailed, DownloadFailed, KilnError, TestsFailed
from kiln.ledger import Ledger, records
from kiln.matchspec import package_name
from kiln.model.artifact import Artifact, PackageReport, TestReport, Verdict
from kiln.model.plan import BuildStep, CompileStep
from kiln.pipeline import compiling, offline
from kiln.pipeline.cuda import offered
from kiln.pipeline.memo import Made, Memo, file_or_folder_digest, folder_digest
from kiln.pipeline.outline import channels_for, file_name, matching, titles
from kiln.pipeline.process import end_with_all_below
from kiln.pipeline.voice import Voice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kiln.channel import VirtualPackages
    from kiln.model.rendered import Output, Rendered
    from kiln.pipeline.voice import Told

RENDERED = ("meta.yaml", "conda_build_config.yaml")  # they act through what was rendered from them
GONE = "--failed --keep-failed runs it again and keeps what it leaves"
Result = TypeVar("Result")

EPOCH = "SOURCE_DATE_EPOCH"
ATTEMPTS, PAUSE = 3, 2.0  # for what the network spoils; seconds, doubled each time


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to build and where: ``extra`` goes into the packages' metadata.

    From ``from_step`` on, every step runs again; of those before it, what they left last is taken.
    ``debug`` names the output whose script is to be run by hand, by a pattern; nothing stands for the recipe's own.
    ``parent`` is the process that starts the build, where that can be seen: on the host.
    ``queue`` is where scripts are handed over that run without the network, None where all run here.
    ``python`` and ``image`` are a rehearsal's: an interpreter to use, and the image, None on the host.
    ``compile`` are variables for the compile step alone, which do not decide its result; after ``stall`` seconds
    without any sign of life it is told to stand still. ``taken`` are reports of packages that another cell has made,
    which lie in ``channel``. ``mirror`` is where archives of the sources are looked for first.
    """

    root: Path
    recipe: Path
    config: str
    folder: Path
    cache: Path
    result: Path
    extra: Mapping[str, str]
    keep_failed: bool
    from_step: str | None = None
    parent: int | None = None
    python: Path | None = None
    image: str | None = None
    debug: str | None = None
    compile: Mapping[str, str] = field(default_factory=dict)
    stall: float
    taken: Sequence[Mapping[str, Any]] = ()
    channel: Path
    queue: Path | None = None
    mirror: str | None = None
    network: bool = False

    @classmethod
    def read(cls, file: Path) -> Job:
        """Return the job that a file holds."""
        fields = json.loads(file.read_text())
        names = ("root", "recipe", "folder", "cache", "result", "channel", "python", "queue")
        paths = {name: Path(fields[name]) for name in names if fields[name] is not None}
        return cls(**{**fields, **paths})

    def write(self, file: Path) -> None:
        """Write the job into a file."""
        fields = dataclasses.asdict(self)
        files.write_text(
            file, json.dumps({key: str(value) if isinstance(value, Path) else value for key, value in fields.items()})
        )


def main(job_file: str) -> None:
    """Build what the job says, or make an output ready for a person, and write the result."""
    carry_out(job_file, do)


def do(job: Job, voice: Voice) -> dict[str, Any]:
    """Return the result of a job."""
    secrets = {name: os.environ.pop(name) for name in compiling.secrets(os.environ)}  # for the compile step alone
    builder = Builder.of(job, voice, secrets)
    return builder.run() if job.debug is None else {"debug": builder.debug(job.debug)}


def carry_out(job_file: str, do: Callable[[Job, Voice], dict[str, Any]]) -> None:
    """Do a job, write the result, and leave past py-rattler's tear-down (see kiln.__main__)."""
    job = Job.read(Path(job_file))
    end_with_all_below(signal.SIGTERM)
    command.die_with_parent(signal.SIGTERM, parent=job.parent)
    voice = Voice()
    result: dict[str, Any] = {"packages": [], "error": None, "outdated": False}
    try:
        result |= do(job, voice)
    except KilnError as error:
        told = {"type": type(error).__name__, "what": str(error.what), "why": error.why, "hint": error.hint}
        result["error"] = {**told, "step": voice.failed}
    result["steps"] = [dataclasses.asdict(step) for step in voice.steps]
    files.write_text(job.result, json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A cell being built; its methods are its steps, in their order."""

    job: Job
    rendered: Rendered
    recipe_digest: str
    channel: Channel
    sources: tuple[str, ...]
    memo: Memo[Told]
    voice: Voice
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, job: Job, voice: Voice, secrets: Mapping[str, str]) -> Builder:
        """Render the cell and open its folders."""
        with voice.step("render"):
            feedstock = load.find(job.root)
            rendered = render.finalise(render.render(feedstock, expand.read(feedstock, job.config)))
        channel = Channel(root=job.folder / "channel")
        channel.mend()
        tests = {name for output in rendered.outputs for name in output.tests.files}
        known = titles(rendered)
        first = 0 if job.from_step is None else known.index(job.from_step)
        memory = Ledger(job.folder / "steps.sqlite")
        return cls(
            job=job,
            rendered=rendered,
            recipe_digest=folder_digest(job.recipe, without={*RENDERED, *tests}),
            channel=channel,
            sources=channels_for(rendered),
            memo=Memo(
                config=job.config,
                ledger=memory,
                console=voice,
                settled=known[:first],
                again=() if job.from_step is None else known[first:],
            ),
            voice=voice,
            secrets=secrets,
        )

    def run(self) -> dict[str, Any]:
        """Compile, make every package, then test every package; returns the result's packages as JSON values."""
        compiled = self.compile()
        planned = self.plan(compiled)
        self.channel.keep_only(file_name(step.output) for step in planned)  # an earlier recipe's would be found too
        taken = {name: report for step in planned if (report := self.take(name := file_name(step.output), step.output))}
        steps = [step for step in planned if file_name(step.output) not in taken]
        made = [self.make(step, compiled) for step in steps]
        virtual = self.virtual_packages()
        beside = sorted([report["artifact"]["sha256"] for report in taken.values()] + hashes(*made))
        tested = [self.test(step.output, package, beside, virtual) for step, package in zip(steps, made, strict=True)]
        together = zip(steps, made, tested, strict=True)
        return {
            "packages": [
                *taken.values(),
                *(package_told(step.output, package, tests, self.job) for step, package, tests in together),
                *(self.wheel(wheel, compiled) for wheel in wheels_of(compiled)),
            ],
            "outdated": any(each.outdated for each in (*([compiled] if compiled else []), *made, *tested)),
        }

    def debug(self, pattern: str) -> dict[str, str]:
        """Make everything that one script needs, what comes before it included; returns the places of it."""
        rendered, folder = self.rendered, self.job.folder / "debug"
        if not pattern and not build.is_single(rendered):
            step = self.plan_compile(folder)
            assert step is not None, "a recipe that is no single package has a step of its own"
            self.write_settings()
            return self.prepare("compile", step)
        chosen = matching(rendered, pattern)
        compiled = self.compile()
        for planned in self.plan(compiled):
            if planned.output == chosen:
                return self.prepare(chosen.name, dataclasses.replace(planned, folder=folder), compiled)
            self.make(planned, compiled)
        raise AssertionError("one of the outputs was chosen")

    def prepare(self, name: str, step: BuildStep | CompileStep, compiled: Made | None = None) -> dict[str, str]:
        """Have the engine make everything that a script needs."""
        environment = {**os.environ, "RATTLER_CACHE_DIR": str(self.job.cache), **moment()}
        with self.voice.step(f"prepare {name}") as shown:
            places = persistent(
                lambda: build.prepare(step, environment=environment, on_line=shown.line, origins=self.origins), shown
            )
        sources = compiled.detail["work"] if compiled else places["work"]
        return {**places, "name": name, "sources": sources}

    @property
    def channels(self) -> tuple[str, ...]:
        """Where packages come from: what this cell made, then the variant's channels."""
        return (self.channel.url, *self.sources)

    def plan(self, compiled: Made | None) -> tuple[BuildStep, ...]:
        """Plan the packages."""
        return build.plan_outputs(
            self.rendered,
            recipe_folder=self.job.recipe,
            folder=self.job.folder,
            channels=self.channels,
            compiled=None if compiled is None else self.job.folder / "compile",
            extra=self.job.extra,
        )

    def compile(self) -> Made | None:
        """Run the recipe's own build step, whose work directory stays for the outputs."""
        step = self.plan_compile(self.job.folder / "compile")
        if step is None:
            return None

        def do(shown: Told) -> tuple[Iterable[Path], dict[str, Any]]:
            package = self.watched(step, shown)
            return [package], {"work": (step.folder / "work_directory").read_text().strip()}

        made = self.memo.once("compile", self.inputs(step), do)
        if not Path(made.detail["work"]).is_dir():
            if made.outdated or "compile" in self.memo.settled:
                raise self.memo.unfinished("compile")
            files.remove(step.folder)  # the package alone is left, which will not be found then
            return self.compile()
        return made

    def plan_compile(self, folder: Path) -> CompileStep | None:
        """Plan the recipe's own build step in a folder; None for a recipe that is a single package."""
        return build.plan_compile(
            self.rendered,
            recipe_folder=self.job.recipe,
            folder=folder,
            channels=self.sources,
            settings=self.job.folder / "compile.env",
            secrets=tuple(self.secrets),
        )

    def write_settings(self) -> Path:
        """Tell the compile step of its place, and return where its Bazel is to write its events."""
        events = self.job.folder / "bazel-events.json"
        files.remove(events)
        variables = {**self.job.compile, compiling.EVENTS: str(events)}
        files.write_text(self.job.folder / "compile.env", compiling.settings(variables))
        return events

    def watched(self, step: CompileStep, shown: Told) -> Path:
        """Run the compile step, its Bazel followed by the events that it writes."""
        events = self.write_settings()
        with (
            tidied(self.job, step.folder),
            bazel.watched(events, tell=shown.progress, stall=self.job.stall, beside=self.job.queue is None) as watch,
        ):
            try:
                package = self.execute(step, shown)
            except BuildFailed as error:
                told = watch.explained(error)
                if self.is_apart("compile"):
                    offline.explain(told, "compile")
                raise told from error
            if report := watch.report():
                shown.compiled(report)
            return package

    def wheel(self, path: Path, compiled: Made | None) -> dict[str, Any]:
        """Keep the wheel that the compile ended in, try it out with pip, and say what became of it."""
        made = self.keep_wheel(path, compiled)
        ((kept, sha256),) = made.paths.items()
        tested = self.test_wheel(Wheel.of(kept), made)
        wheel = Wheel.of(kept)
        artifact = Artifact(
            path=kept.relative_to(self.job.folder),
            sha256=sha256,
            size=kept.stat().st_size,
            cell=self.job.config,
            name=wheel.name,
            version=wheel.version,
            build_string=wheel.tags,
            subdir=f"wheels/{compiling.group_of(self.rendered.cell)}",
        )
        report = PackageReport(
            artifact=artifact,
            build_seconds=round(made.seconds, 3),
            reused=made.reused,
            tests=records.tests(tested.detail),
        )
        return records.package_as_json(report)

    def keep_wheel(self, path: Path, compiled: Made | None) -> Made:
        """Check what a wheel's name says, and keep it under the tag that its binaries keep."""

        def do(shown: Told) -> tuple[Iterable[Path], dict[str, Any]]:
            found = Wheel.of(path)
            check_wheel.require_python(found, self.python)
            tag = check_wheel.promise(found) if check_wheel.can_audit() else None
            kept = check_wheel.placed(found, self.job.folder / "wheels", tag)
            shown.note(f"{kept.name} keeps {tag}" if tag else f"{kept.name}: no binaries, or no auditwheel here")
            return [kept], {}

        inputs = {"compiled": hashes(compiled) if compiled else [], "name": path.name, "python": self.python}
        return self.memo.once(f"wheel {Wheel.of(path).name}", inputs, do)

    def test_wheel(self, wheel: Wheel, made: Made) -> Made:
        """Install a wheel into a fresh venv of its Python."""
        log = self.job.folder / f"test-{wheel.path.name}.log"

        def do(shown: Told) -> tuple[Iterable[Path], dict[str, Any]]:
            prefix = Path((self.job.folder / "compile" / "prefix").read_text().strip())
            found = check_wheel.interpreter(wheel, interpreters(prefix, self.python), environment=os.environ)
            if found is None:
                note = f"not tried out: no interpreter for {wheel.python} is here"
                report = TestReport(package=wheel.path.name, verdict=Verdict.NONE, notes=(note,))
                return made.paths, records.tests_as_json(report)
            step = check_wheel.plan(wheel.path, python=found, folder=self.job.folder / "venv", network=self.job.network)
            with tidied(self.job, step.folder):
                report = check_wheel.execute(
                    step,
                    environment=os.environ,
                    apart=lambda: self.scripts_apart(f"test {wheel.name}"),
                    log=log,
                    on_line=shown.line,
                )
            return made.paths, records.tests_as_json(dataclasses.replace(report, log=None))

        inputs = {"wheel": hashes(made), "network": self.job.network}
        return self.memo.once(f"test wheel {wheel.name}", inputs, do)

    @property
    def python(self) -> str | None:
        """The minor version of Python that the cell is for, ``3.11``; None when it is for none, or for several."""
        given = self.rendered.cell.variant.get("python", ())
        found = {match[0] for value in given if (match := re.match(r"3\.\d+", value))}
        return found.pop() if len(found) == 1 else None

    def take(self, name: str, output: Output) -> dict[str, Any] | None:
        """Take a package that another cell has made into this cell's channel; None when there is none to take."""
        found = [dict(told) for told in self.job.taken if Path(told["artifact"]["path"]).name == name]
        if not found or f"build {output.name}" in self.memo.again:
            return None
        (told,) = found
        with self.voice.step(f"take {output.name}") as shown:
            shown.found()
            shown.note(told["tests"]["notes"][-1])
            (placed,) = self.channel.add([(self.job.channel / output.subdir / name, output.subdir)])
        return {**told, "artifact": {**told["artifact"], "path": str(placed.relative_to(self.job.folder))}}

    def make(self, step: BuildStep, compiled: Made | None) -> Made:
        """Make one package and put it into the cell's channel."""

        def do(shown: Told) -> tuple[Iterable[Path], dict[str, Any]]:
            with tidied(self.job, step.folder):
                package = self.execute(step, shown)
            placed = self.channel.add([(package, step.output.subdir)])
            files.remove(step.folder)
            return placed, {}

        work = sorted(compiled.paths.values()) if compiled else []
        needs = sorted(package_name(spec) for spec in step.output.requirements.host)
        inputs = {**self.inputs(step), "index": step.index, "compiled": work, "needs": needs}
        return self.memo.once(f"build {step.output.name}", inputs, do, leaves=file_name(step.output))

    def execute(self, step: BuildStep | CompileStep, shown: Told) -> Path:
        """Have the engine make something."""
        secrets = self.secrets if isinstance(step, CompileStep) else {}
        title = f"build {step.output.name}" if isinstance(step, BuildStep) else "compile"
        with self.scripts_apart(title) as given:
            environment = {**given, **secrets, "RATTLER_CACHE_DIR": str(self.job.cache), **moment()}

            def do() -> Path:
                return build.execute(step, environment=environment, log=None, on_line=shown.line, origins=self.origins)

            return persistent(do, shown)

    @property
    def origins(self) -> Origins:
        """Where archives of the sources may come from besides their own addresses."""
        folder = self.job.compile.get(compiling.DISTDIR)
        return Origins(folder=None if folder is None else Path(folder), mirror=self.job.mirror)

    def is_apart(self, step: str) -> bool:
        """Whether a step's script runs without the network."""
        cached = step == "compile" and bool(self.secrets)  # a cache elsewhere, which it is to use
        return self.job.queue is not None and not cached and not offline.is_granted(step, self.rendered.network)

    @contextlib.contextmanager
    def scripts_apart(self, step: str) -> Iterator[Mapping[str, str]]:
        """Hand a step's script over to where there is no network, unless it is granted; yields its environment."""
        queue = self.job.queue
        if queue is None or not self.is_apart(step):
            yield os.environ
            return
        before = offline.handed_over(queue)
        try:
            yield offline.environment(queue, os.environ)
        except (BuildFailed, TestsFailed) as error:
            offline.explain(error, step)
            raise
        offline.require_handed_over(queue, before, step)

    def inputs(self, step: BuildStep | CompileStep) -> dict[str, Any]:
        """What a step's result depends on."""
        return {
            "recipe": step.recipe,
            "files": self.recipe_digest,
            "channels": step.channels,
            "engine": version("py-rattler-build"),
            "folder": str(step.folder),
        }

    def test(self, output: Output, package: Made, beside: list[str], virtual: VirtualPackages) -> Made:
        """Install one package into a fresh prefix and run its tests there; ``beside`` are the hashes of the cell's."""
        name = f"{output.name}-{output.build_string}"
        step = check.plan(
            output,
            recipe_folder=self.job.recipe,
            folder=self.job.folder / f"test-{name}",
            prefix=self.job.folder / "prefixes" / name,
            sources=build.test_sources(self.job.folder, output),
        )
        inputs = {
            "package": hashes(package),
            "beside": beside,
            "channels": self.channels,
            "specs": step.specs,
            "script": step.script,
            "environment": step.environment,
            "files": {file.name: file_or_folder_digest(file) for file in step.files},
            "machine": virtual,
        }

        def do(shown: Told) -> tuple[Iterable[Path], dict[str, Any]]:
            apart = self.scripts_apart(f"test {output.name}") if step.commands else contextlib.nullcontext(os.environ)
            with apart as environment, tidied(self.job, step.folder, step.prefix):
                report = persistent(
                    lambda: check.execute(
                        step,
                        channels=self.channels,
                        cache=self.job.cache / "pkgs",
                        virtual_packages=virtual,
                        environment=environment,
                        log=self.job.folder / f"test-{name}.log",
                        on_line=shown.line,
                    ),
                    shown,
                )
            return package.paths, records.tests_as_json(dataclasses.replace(report, log=None))

        return self.memo.once(f"test {output.name}", inputs, do, leaves=file_name(output))

    def virtual_packages(self) -> VirtualPackages:
        """Return what the machine offers; for a CUDA cell on a machine without a driver, as if it had one."""
        return offered(machine_virtual_packages(), self.rendered.cell)


@contextlib.contextmanager
def tidied(job: Job, *folders: Path) -> Iterator[None]:
    """Remove folders when the block fails, unless what failed is to be kept."""
    try:
        yield
    except KilnError as error:
        if not job.keep_failed:
            for folder in folders:
                files.remove(folder)
            if any(str(folder) in error.hint for folder in folders):
                error.hint = GONE  # instead of where that was
        raise


def package_told(output: Output, made: Made, tested: Made, job: Job) -> dict[str, Any]:
    """Say what became of one package; its path is relative to the cell's folder."""
    ((path, sha256),) = made.paths.items()
    artifact = Artifact(
        path=path.relative_to(job.folder),
        sha256=sha256,
        size=path.stat().st_size,
        cell=job.config,
        name=output.name,
        version=output.version,
        build_string=output.build_string,
        subdir=output.subdir,
    )
    report = PackageReport(
        artifact=artifact,
        build_seconds=round(made.seconds, 3),
        reused=made.reused,
        tests=records.tests(tested.detail),
    )
    return records.package_as_json(report)


def moment() -> dict[str, str]:
    """Return the moment that packages are said to be of, in whole seconds: the caller's, else now.

    A package built again as of the same moment is the same; the variable is described at reproducible-builds.org.
    """
    return {EPOCH: os.environ.get(EPOCH) or str(int(time.time()))}


def wheels_of(compiled: Made | None) -> tuple[Path, ...]:
    """Return the wheels that a compile has left where every output's script finds them."""
    return () if compiled is None else tuple(sorted(Path(compiled.detail["work"], "dist").glob("*.whl")))


def interpreters(prefix: Path, python: str | None) -> tuple[Path, ...]:
    """Return where an interpreter for a wheel may be: beside what compiled it, or on PATH."""
    names = [f"python{python}"] if python else ["python3"]
    found = [shutil.which(name) for name in names]
    return (prefix / "bin" / "python", *(Path(each) for each in found if each))


def hashes(*made: Made) -> list[str]:
    """Return the hashes of what steps left, in order."""
    return sorted(sha256 for each in made for sha256 in each.paths.values())


def persistent(do: Callable[[], Result], shown: Told) -> Result:
    """Do something, again after a pause when the network spoiled it, and return its result."""
    for attempt in range(1, ATTEMPTS):
        try:
            return do()
        except DownloadFailed as error:
            shown.note(f"attempt {attempt} of {ATTEMPTS}: {error.what}")
            shown.line(f"the network failed, attempt {attempt} of {ATTEMPTS}: {error.why or error.what}")
            time.sleep(PAUSE * 2 ** (attempt - 1))
    return do()
