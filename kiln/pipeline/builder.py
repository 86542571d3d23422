"""One cell built, installed and tested by a process of its own, on the host or in a container.

The job names folders as this process sees them. What came of it is written to the job's result file last of all; every
step that ended well is found again by the next attempt as long as nothing it was made of has changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import build, check, expand, files, load, render
from kiln.channel import Channel, machine_virtual_packages
from kiln.ledger import Ledger, records
from kiln.matchspec import package_name
from kiln.pipeline import building, compiling
from kiln.pipeline.bench import Bench, persistent
from kiln.pipeline.building import RENDERED, for_tests, hashes, package_told, tidied
from kiln.pipeline.compile_step import Compile
from kiln.pipeline.cuda import offered
from kiln.pipeline.memo import Made, Memo, file_or_folder_digest, folder_digest
from kiln.pipeline.outline import channels_for, file_name, matching, titles
from kiln.pipeline.wheels import Wheels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.channel import VirtualPackages
    from kiln.model.artifact import TestReport
    from kiln.model.plan import BuildStep, CompileStep, TestStep
    from kiln.model.rendered import Output, Rendered
    from kiln.pipeline.jobs import BuildJob
    from kiln.pipeline.voice import Told, Voice


def main(job_file: str) -> None:
    """Build what the job says, or make an output ready for a person, and write the result."""
    building.carry_out(job_file, do)


def do(job: BuildJob, voice: Voice) -> dict[str, Any]:
    """Return the result of a job."""
    secrets = {name: os.environ.pop(name) for name in compiling.secrets(os.environ)}  # for the compile step alone
    builder = Builder.of(job, voice, secrets)
    return builder.run() if job.debug is None else {"debug": builder.debug(job.debug)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A cell being built; its methods are its steps, in their order."""

    job: BuildJob
    rendered: Rendered
    channel: Channel
    sources: tuple[str, ...]
    bench: Bench
    memo: Memo[Told]
    voice: Voice

    @classmethod
    def of(cls, job: BuildJob, voice: Voice, secrets: Mapping[str, str]) -> Builder:
        """Render the cell and open its folders."""
        with voice.step("render"):
            feedstock = load.find(job.root)
            rendered = render.finalise(render.render(feedstock, expand.read(feedstock, job.config)))
        channel = Channel(root=job.folder / "channel")
        channel.mend()
        tests = {name for output in rendered.outputs for name in output.tests.files}
        digest = folder_digest(job.recipe, without={*RENDERED, *tests})
        return cls(
            job=job,
            rendered=rendered,
            channel=channel,
            sources=channels_for(rendered),
            bench=Bench(job=job, granted=rendered.network, recipe_digest=digest, secrets=secrets),
            memo=memory_of(job, rendered, voice),
            voice=voice,
        )

    def run(self) -> dict[str, Any]:
        """Compile, make every package, then test every package; returns the result's packages as JSON values."""
        compiled = self.compile.run()
        planned = self.plan(compiled)
        self.channel.keep_only(file_name(step.output) for step in planned)  # an earlier recipe's would be found too
        taken = {name: report for step in planned if (report := self.take(name := file_name(step.output), step.output))}
        steps = [step for step in planned if file_name(step.output) not in taken]
        made = [self.make(step, compiled) for step in steps]
        virtual = offered(machine_virtual_packages(), self.rendered.cell)
        beside = sorted([report["artifact"]["sha256"] for report in taken.values()] + hashes(*made))
        tested = [self.test(step.output, package, beside, virtual) for step, package in zip(steps, made, strict=True)]
        together = zip(steps, made, tested, strict=True)
        return {
            "packages": [
                *taken.values(),
                *(package_told(step.output, package, tests, self.job) for step, package, tests in together),
                *Wheels(cell=self.rendered.cell, bench=self.bench, memo=self.memo).of(compiled),
            ],
            "outdated": any(each.outdated for each in (*([compiled] if compiled else []), *made, *tested)),
        }

    def debug(self, pattern: str) -> dict[str, str]:
        """Make everything that one script needs, what comes before it included; returns the places of it."""
        rendered, folder = self.rendered, self.job.folder / "debug"
        if not pattern and not build.is_single(rendered):
            step = self.compile.plan(folder)
            assert step is not None, "a recipe that is no single package has a step of its own"
            self.compile.write_settings()
            return self.prepare("compile", step)
        chosen = matching(rendered, pattern)
        compiled = self.compile.run()
        for planned in self.plan(compiled):
            if planned.output == chosen:
                return self.prepare(chosen.name, dataclasses.replace(planned, folder=folder), compiled)
            self.make(planned, compiled)
        raise AssertionError("one of the outputs was chosen")

    def prepare(self, name: str, step: BuildStep | CompileStep, compiled: Made | None = None) -> dict[str, str]:
        """Have the engine make everything that a script needs."""
        with self.voice.step(f"prepare {name}") as shown:
            places = self.bench.prepare(step, shown)
        sources = compiled.detail["work"] if compiled else places["work"]
        return {**places, "name": name, "sources": sources}

    @property
    def channels(self) -> tuple[str, ...]:
        """Where packages come from: what this cell made, then the variant's channels."""
        return (self.channel.url, *self.sources)

    @property
    def compile(self) -> Compile:
        """The recipe's own build step."""
        return Compile(rendered=self.rendered, sources=self.sources, bench=self.bench, memo=self.memo)

    def plan(self, compiled: Made | None) -> tuple[BuildStep, ...]:
        """Plan the packages."""
        return build.plan_outputs(
            self.rendered,
            recipe_folder=self.job.recipe,
            folder=self.job.folder,
            channels=self.channels,
            compiled=None if compiled is None else self.compile.folder,
            extra=self.job.extra,
        )

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
                package = self.bench.execute(step, shown)
            placed = self.channel.add([(package, step.output.subdir)])
            files.remove(step.folder)
            return placed, {}

        work = sorted(compiled.paths.values()) if compiled else []
        needs = sorted(package_name(spec) for spec in step.output.requirements.host)
        inputs = {**self.bench.inputs(step), "index": step.index, "compiled": work, "needs": needs}
        return self.memo.once(f"build {step.output.name}", inputs, do, leaves=file_name(step.output))

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
            report = self.tested(step, virtual, self.job.folder / f"test-{name}.log", shown)
            return package.paths, records.tests_as_json(dataclasses.replace(report, log=None))

        return self.memo.once(f"test {output.name}", inputs, do, leaves=file_name(output))

    def tested(self, step: TestStep, virtual: VirtualPackages, log: Path, shown: Told) -> TestReport:
        """Install a package and run its tests, these without the network unless it is granted."""
        title = f"test {step.package}"
        apart = self.bench.scripts_apart(title) if step.commands else contextlib.nullcontext(os.environ)
        with apart as environment, tidied(self.job, step.folder, step.prefix):
            return persistent(
                lambda: check.execute(
                    step,
                    channels=self.channels,
                    cache=self.job.cache / "pkgs",
                    virtual_packages=virtual,
                    environment=for_tests(environment),
                    log=log,
                    on_line=shown.line,
                ),
                shown,
            )


def memory_of(job: BuildJob, rendered: Rendered, voice: Voice) -> Memo[Told]:
    """Return the memory of a cell's steps: from ``--from-step`` on they run again, those before are taken as left."""
    known = titles(rendered)
    first = 0 if job.from_step is None else known.index(job.from_step)
    return Memo(
        config=job.config,
        ledger=Ledger(job.folder / "steps.sqlite"),
        console=voice,
        settled=known[:first],
        again=() if job.from_step is None else known[first:],
    )
