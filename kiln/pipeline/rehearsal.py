"""A cell rehearsed by a process of its own: the whole pipeline, with upstream's wheel in the place of the compile.

The wheels are there already, fetched by the cell's process: this one, in a container or on the host, needs no
network.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from kiln import build, check, expand, files, load, render
from kiln import rehearse as parts
from kiln.channel import machine_virtual_packages
from kiln.errors import RecipeFault, UnsupportedPython
from kiln.ledger import Ledger, records
from kiln.matchspec import package_name
from kiln.pipeline import building, done
from kiln.pipeline.building import RENDERED, for_tests, package_told, tidied
from kiln.pipeline.choice import python_of
from kiln.pipeline.cuda import cuda_of
from kiln.pipeline.memo import Made, Memo, folder_digest
from kiln.pipeline.outline import file_name
from kiln.pipeline.preflight import room_to_rehearse
from kiln.pipeline.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kiln.channel import VirtualPackages
    from kiln.model.feedstock import Feedstock
    from kiln.model.plan import BuildStep
    from kiln.model.rendered import Output, Rendered
    from kiln.pipeline.jobs import BuildJob
    from kiln.pipeline.voice import Told, Voice


def main(job_file: str) -> None:
    """Rehearse what the job says and write the result."""
    building.carry_out(job_file, lambda job, voice: Rehearsal.of(job, voice).run())


def fetch(wheels: parts.RehearsalPlan, shop: Workshop, *, env: Mapping[str, str], log: Path, voice: Voice) -> None:
    """Bring a cell's wheels here, one cell after the other; ``env`` is pip's.

    Raises:
        KilnError: DownloadFailed, HashMismatch, DiskFull.
    """
    size = sum(wheel.size for wheel in parts.missing(wheels, shop.wheels))
    title = f"fetch wheels, {files.size_text(size)}" if size else "verify the fetched wheels"
    with voice.step(title) as step, done.waiting(shop.lock, seconds=done.LONG):
        parts.fetch(wheels, shop.wheels, env=env, log=log, on_line=step.line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """One rehearsal under way; its methods are its steps, in their order."""

    job: BuildJob
    feedstock: Feedstock
    rendered: Rendered
    wheels: parts.RehearsalPlan
    shop: Workshop
    memo: Memo[Told]
    voice: Voice

    @classmethod
    def of(cls, job: BuildJob, voice: Voice) -> Rehearsal:
        """Render the cell and open its folders."""
        with voice.step("render"):
            feedstock = load.find(job.root)
            cell = expand.read(feedstock, job.config)
            rendered = render.finalise(render.render(feedstock, cell))
        shop = Workshop(cell=job.folder)
        shop.open()
        return cls(
            job=job,
            feedstock=feedstock,
            rendered=rendered,
            wheels=parts.plan(python=python_of(cell), cuda=cuda_of(cell)),
            shop=shop,
            memo=Memo(config=job.config, ledger=Ledger(job.folder / "steps.sqlite"), console=voice),
            voice=voice,
        )

    def run(self) -> dict[str, Any]:
        """Convert, build and test; returns the packages as JSON values."""
        self.require_same_version()
        dependencies = self.convert(the_python(self.wheels.python, self.job))
        steps = self.plan()
        self.fill_channel(dependencies, steps)
        needed = [package.name for package in dependencies]
        built: dict[str, Made] = {}
        for step in steps:
            built[step.output.name] = self.build(step, built, needed)
        virtual = self.virtual_packages()
        tested = {step.output.name: self.test(step.output, built, needed, virtual) for step in steps}
        packages = [
            package_told(each.output, built[each.output.name], tested[each.output.name], self.job) for each in steps
        ]
        return {"packages": packages}

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

    def convert(self, interpreter: parts.Interpreter) -> tuple[Path, ...]:
        """Make conda packages of the interpreter and of the wheels; those that are there are not made again."""
        folder = self.shop.converted
        title = f"package Python {interpreter.version} and the wheels"
        with self.voice.step(title), done.waiting(self.shop.lock, seconds=done.LONG):
            files.remove_leftovers(folder)
            return (
                *parts.python_packages(interpreter, folder, env=os.environ),
                *parts.dependency_packages(self.wheels, self.shop.wheels, folder),
            )

    @property
    def room_for_build(self) -> int:
        """Bytes of disk that the making of one package takes for a while."""
        return room_to_rehearse(0, self.wheels.upstream.size, jobs=1)

    def plan(self) -> tuple[BuildStep, ...]:
        """Plan the cell's own packages."""
        return build.plan_rehearsal(
            self.rendered,
            recipe_folder=self.job.recipe,
            folder=self.shop.work,
            channels=(self.shop.channel.url,),
            wheel=parts.upstream_wheel(self.wheels, self.shop.wheels),
        )

    def fill_channel(self, dependencies: tuple[Path, ...], steps: Iterable[BuildStep]) -> None:
        """Have exactly what this rehearsal needs in the channel, and what it made before."""
        channel = self.shop.channel
        with self.voice.step("index the channel"):
            channel.keep_only({package.name for package in dependencies} | {file_name(step.output) for step in steps})
            there = {package.name for package in channel.packages()}
            fresh = [(package, parts.SUBDIR) for package in dependencies if package.name not in there]
            if fresh:
                channel.add(fresh)

    def build(self, step: BuildStep, built: Mapping[str, Made], needed: list[str]) -> Made:
        """Make one package and put it into the channel."""
        output = step.output

        def do(shown: Told) -> tuple[Iterable[Path], dict[str, Any]]:
            files.require_room(self.shop.work, self.room_for_build, for_what=f"making {output.name}")
            environment = {**os.environ, "RATTLER_CACHE_DIR": str(self.shop.cache)}
            with tidied(self.job, step.folder):
                package = build.execute(step, environment=environment, log=None, on_line=shown.line)
            placed = self.shop.channel.add([(package, output.subdir)])
            files.remove(step.folder)
            return placed, {}

        inputs = {
            "recipe": step.recipe,
            "index": step.index,
            "files": folder_digest(self.job.recipe, without={*RENDERED, *self.test_files()}),
            "wheel": self.wheels.upstream.sha256,
            "engine": version("py-rattler-build"),
            "packages": needed,
            "outputs": needed_hashes(output, built),
        }
        return self.memo.once(f"build {output.name}", inputs, do)

    def test(self, output: Output, built: Mapping[str, Made], needed: list[str], virtual: VirtualPackages) -> Made:
        """Install one package into a fresh prefix and run its tests there."""
        channel = self.shop.channel
        step = check.plan(
            output,
            recipe_folder=self.job.recipe,
            folder=self.shop.work / f"test-{output.name}",
            prefix=self.shop.prefixes / output.name,
            available=channel.names(),
        )
        log = self.shop.logs / f"test-{output.name}.log"

        def do(shown: Told) -> tuple[Iterable[Path], dict[str, Any]]:
            files.remove(log)
            with tidied(self.job, step.folder, step.prefix):
                report = check.execute(
                    step,
                    channels=(channel.url,),
                    cache=self.shop.cache / "pkgs",
                    virtual_packages=virtual,
                    environment=for_tests(os.environ),
                    log=log,
                    on_line=shown.line,
                )
            for note in report.notes:
                shown.note(note)
            return (), records.tests_as_json(dataclasses.replace(report, log=None))

        inputs = {
            "script": step.script,
            "specs": step.specs,
            "files": [files.sha256(file) for file in step.files],
            "packages": needed,
            "outputs": {name: sorted(made.paths.values()) for name, made in built.items()},
        }
        return self.memo.once(f"test {output.name}", inputs, do)

    def virtual_packages(self) -> VirtualPackages:
        """Return what the machine offers; for a CUDA cell on a machine without a driver, as if it had one."""
        offered = machine_virtual_packages()
        if self.wheels.cuda is None or "__cuda" in offered:
            return offered
        with self.voice.step("look for a GPU driver") as step:
            step.note(f"there is none: solving as if there were one for CUDA {self.wheels.cuda}")
        return {**offered, "__cuda": (self.wheels.cuda, "0")}

    def test_files(self) -> set[str]:
        """Return the recipe's files that only tests use; they do not decide what is built."""
        return {name for output in self.rendered.outputs for name in output.tests.files}


def the_python(python: str, job: BuildJob) -> parts.Interpreter:
    """Return an interpreter of a minor version: in a container the image's own before one that it was given.

    Raises:
        UnsupportedPython: when there is none.
    """
    given = (job.python,) if job.python else ()
    if job.image is None:
        return parts.find(python, first=given, env=os.environ)
    try:
        return parts.find(python, last=given, env=os.environ)
    except UnsupportedPython as error:
        raise UnsupportedPython(
            f"the image {job.image} has no Python {python} for {job.config}",
            why="this machine has none that works in it either: " + "; ".join(filter(None, (error.what, error.why))),
            hint=f"name an image with Python {python} (DOCKER_IMAGE), install one with uv, which a container can be "
            "given, or rehearse on this machine: --container none",
        ) from error


def needed_hashes(output: Output, built: Mapping[str, Made]) -> dict[str, list[str]]:
    """Return the hashes of the cell's own packages that an output needs to be built."""
    needs = {package_name(spec) for spec in (*output.requirements.host, *output.requirements.run)}
    return {name: sorted(made.paths.values()) for name, made in built.items() if name in needs}
