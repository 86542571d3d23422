"""A rehearsal: the whole pipeline for one cell, with upstream's wheel in the place of the compile."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from kiln import build, check, command, files, render
from kiln import rehearse as parts
from kiln.channel import machine_virtual_packages
from kiln.errors import RecipeFault
from kiln.ledger import Ledger
from kiln.matchspec import package_name
from kiln.model.artifact import Artifact, PackageReport, RunReport, TestReport, Verdict
from kiln.pipeline.choice import choose, python_of
from kiln.pipeline.cuda import cuda_of
from kiln.pipeline.memo import Made, Memo, folder_digest
from kiln.pipeline.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kiln.channel import VirtualPackages
    from kiln.console import Console, Step
    from kiln.model.feedstock import Feedstock
    from kiln.model.plan import BuildStep
    from kiln.model.rendered import Output, Rendered
    from kiln.pipeline.machine import Machine

RENDERED = ("meta.yaml", "conda_build_config.yaml")  # they act through what was rendered from them
# Bytes of room for each byte of a wheel, as measured: fetched, converted and unpacked; and while a package is made of
# upstream's, taken apart, staged and packed.
ROOM_FOR_WHEELS, ROOM_FOR_BUILD = 4, 8


def rehearse(feedstock: Feedstock, config: str | None, *, machine: Machine, console: Console) -> RunReport:
    """Rehearse one cell, ``config`` or the CPU cell of the machine's Python, and report what was made and tested.

    A step that an earlier run finished, and whose inputs are the same, is found and not repeated.

    Raises:
        KilnError: UnknownConfig, UnsupportedPython, DownloadFailed, HashMismatch, DiskFull, BuildFailed, SolveFailed,
            TestsFailed, AlreadyRunning and what loading and rendering raise.
    """
    start = time.monotonic()
    cell, interpreter = choose(feedstock, config, machine)
    shop = Workshop.of(feedstock, cell.name)
    with files.locked(shop.lock), command.termination_as_interrupt():
        shop.open()
        rehearsal = Rehearsal(
            feedstock=feedstock,
            rendered=render.finalise(render.render(feedstock, cell)),
            interpreter=interpreter,
            wheels=parts.plan(python=python_of(cell), cuda=cuda_of(cell)),
            shop=shop,
            machine=machine,
            memo=Memo(config=cell.name, ledger=Ledger(shop.ledger), console=console),
            console=console,
        )
        packages = rehearsal.run()
    return RunReport(
        config=cell.name,
        rehearsal=True,
        channel=shop.channel.root,
        packages=packages,
        steps=tuple(console.steps),
        seconds=round(time.monotonic() - start, 3),
        install=f"conda create -n tensorflow --override-channels -c {shop.channel.url} tensorflow",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """One rehearsal under way; its methods are its steps, in their order."""

    feedstock: Feedstock
    rendered: Rendered
    interpreter: parts.Interpreter
    wheels: parts.RehearsalPlan
    shop: Workshop
    machine: Machine
    memo: Memo[Step]
    console: Console

    def run(self) -> tuple[PackageReport, ...]:
        """Fetch, convert, build and test; returns the cell's packages."""
        self.require_same_version()
        wheel = self.fetch()
        dependencies = self.convert()
        steps = self.plan(wheel)
        self.fill_channel(dependencies, steps)
        needed = [package.name for package in dependencies]
        built: dict[str, Made] = {}
        for step in steps:
            built[step.output.name] = self.build(step, built, needed)
        virtual = self.virtual_packages()
        return tuple(self.report(step.output, built, self.test(step.output, built, needed, virtual)) for step in steps)

    def require_same_version(self) -> None:
        """Refuse to put the wheel of one version into packages that say another.

        Raises:
            RecipeFault: naming both versions.
        """
        upstream, versions = self.wheels.upstream, {output.version for output in self.rendered.outputs}
        if upstream.version not in versions:
            raise RecipeFault(
                f"the recipe makes version {', '.join(sorted(versions))}, but a rehearsal's wheel is {upstream.file}",
                hint="lock the wheels of this version: docs/how-to/update-the-locks.md",
            )

    def fetch(self) -> Path:
        """Fetch the wheels that are not here yet, and return upstream's."""
        size = parts.missing_size(self.wheels, self.shop.wheels)
        title = f"fetch wheels, {files.size_text(size)}" if size else "verify the fetched wheels"
        if size:
            room = ROOM_FOR_WHEELS * size + self.room_for_build
            self.console.say(f"fetching {files.size_text(size)}; this needs {files.size_text(room)} of disk in all")
            files.require_room(self.shop.root, room, for_what=f"rehearsing {self.rendered.cell.name}")
        log = self.shop.logs / "fetch.log"
        with self.memo.console.step(title) as step:
            parts.fetch(self.wheels, self.shop.wheels, env=self.machine.for_pip(), log=log, on_line=step.line)
            return parts.upstream_wheel(self.wheels, self.shop.wheels)

    def convert(self) -> tuple[Path, ...]:
        """Make conda packages of the interpreter and of the wheels; those that are there are not made again."""
        folder = self.shop.converted
        with self.memo.console.step(f"package Python {self.interpreter.version} and the wheels"):
            return (
                *parts.python_packages(self.interpreter, folder, env=self.machine.with_own_tools()),
                *parts.dependency_packages(self.wheels, self.shop.wheels, folder),
            )

    @property
    def room_for_build(self) -> int:
        """Bytes of disk that the making of one package takes for a while."""
        return ROOM_FOR_BUILD * self.wheels.upstream.size

    def plan(self, wheel: Path) -> tuple[BuildStep, ...]:
        """Plan the cell's own packages."""
        return build.plan(
            self.rendered,
            recipe_folder=self.feedstock.recipe,
            folder=self.shop.work,
            channels=(self.shop.channel.url,),
            wheel=wheel,
        )

    def fill_channel(self, dependencies: tuple[Path, ...], steps: Iterable[BuildStep]) -> None:
        """Have exactly what this rehearsal needs in the channel, and what it made before."""
        channel = self.shop.channel
        with self.memo.console.step("index the channel"):
            channel.keep_only({package.name for package in dependencies} | {file_name(step.output) for step in steps})
            there = {package.name for package in channel.packages()}
            fresh = [(package, parts.SUBDIR) for package in dependencies if package.name not in there]
            if fresh:
                channel.add(fresh)

    def build(self, step: BuildStep, built: Mapping[str, Made], needed: list[str]) -> Made:
        """Make one package and put it into the channel."""
        output = step.output
        log = self.shop.logs / f"build-{output.name}.log"

        def do(shown: Step) -> tuple[Iterable[Path], dict[str, Any]]:
            files.remove(log)
            files.require_room(self.shop.work, self.room_for_build, for_what=f"making {output.name}")
            environment = self.machine.with_own_tools(RATTLER_CACHE_DIR=str(self.shop.cache))
            package = build.execute(step, environment=environment, log=log, on_line=shown.line)
            placed = self.shop.channel.add([(package, output.subdir)])
            files.remove(step.folder)
            return placed, {}

        inputs = {
            "recipe": step.recipe,
            "index": step.index,
            "files": folder_digest(self.feedstock.recipe, without={*RENDERED, *self.test_files()}),
            "wheel": self.wheels.upstream.sha256,
            "engine": version("py-rattler-build"),
            "packages": needed,
            "outputs": needed_hashes(output, built),
        }
        return self.memo.once(f"build {output.name}", inputs, do)

    def test(
        self, output: Output, built: Mapping[str, Made], needed: list[str], virtual: VirtualPackages
    ) -> TestReport:
        """Install one package into a fresh prefix and run its tests there."""
        channel = self.shop.channel
        step = check.plan(
            output,
            recipe_folder=self.feedstock.recipe,
            folder=self.shop.work / f"test-{output.name}",
            prefix=self.shop.prefixes / output.name,
            available=channel.names(),
        )
        log = self.shop.logs / f"test-{output.name}.log"

        def do(shown: Step) -> tuple[Iterable[Path], dict[str, Any]]:
            files.remove(log)
            report = check.execute(
                step,
                channels=(channel.url,),
                cache=self.shop.cache / "pkgs",
                virtual_packages=virtual,
                environment=self.machine.environment,
                log=log,
                on_line=shown.line,
            )
            for note in report.notes:
                shown.note(note)
            return (), dataclasses.asdict(dataclasses.replace(report, log=None))

        inputs = {
            "script": step.script,
            "specs": step.specs,
            "files": [files.sha256(file) for file in step.files],
            "packages": needed,
            "outputs": {name: sorted(made.paths.values()) for name, made in built.items()},
        }
        made = self.memo.once(f"test {output.name}", inputs, do)
        return test_report(made, log)

    def report(self, output: Output, built: Mapping[str, Made], tests: TestReport) -> PackageReport:
        """Say what became of one package."""
        made = built[output.name]
        ((path, sha256),) = made.paths.items()
        artifact = Artifact(
            path=path,
            sha256=sha256,
            size=path.stat().st_size,
            cell=self.rendered.cell.name,
            name=output.name,
            version=output.version,
            build_string=output.build_string,
            subdir=output.subdir,
        )
        return PackageReport(artifact=artifact, build_seconds=round(made.seconds, 3), reused=made.reused, tests=tests)

    def virtual_packages(self) -> VirtualPackages:
        """Return what the machine offers; for a CUDA cell on a machine without a driver, as if it had one."""
        offered = machine_virtual_packages()
        if self.wheels.cuda is None or "__cuda" in offered:
            return offered
        self.console.say(f"no GPU driver here: solving as if there were one for CUDA {self.wheels.cuda}")
        return {**offered, "__cuda": (self.wheels.cuda, "0")}

    def test_files(self) -> set[str]:
        """Return the recipe's files that only tests use; they do not decide what is built."""
        return {name for output in self.rendered.outputs for name in output.tests.files}


def file_name(output: Output) -> str:
    """Return the name of an output's package file."""
    return f"{output.name}-{output.version}-{output.build_string}.conda"


def needed_hashes(output: Output, built: Mapping[str, Made]) -> dict[str, list[str]]:
    """Return the hashes of the cell's own packages that an output needs to be built."""
    needs = {package_name(spec) for spec in (*output.requirements.host, *output.requirements.run)}
    return {name: sorted(made.paths.values()) for name, made in built.items() if name in needs}


def test_report(made: Made, log: Path) -> TestReport:
    """Return the report that a test left, now or in an earlier run."""
    fields = {**made.detail, "verdict": Verdict(made.detail["verdict"]), "notes": tuple(made.detail["notes"])}
    return TestReport(**{**fields, "log": log})
