"""A build step that outputs share runs again when what it is compiled with has changed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kiln import expand, render
from kiln.builder.config_build import Builder, step_cache_of
from kiln.builder.engine_calls import EngineCalls
from kiln.job.job_descriptions import BuildJob, BuildOptions
from kiln.job.messages import StepReporter
from kiln.local_channel import Channel
from kiln.store.step_cache import digest
from tests.unit.render.test_v1 import feedstock

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = """\
recipe: {name: r, version: '1'}
outputs:
  - staging: {name: s}
    build: {script: [make]}
  - package: {name: a}
    inherit: s
"""


def test_a_rehearsal_compiles_again_with_another_compiler_of_the_machine(tmp_path: Path) -> None:
    source = feedstock(tmp_path / "feedstock", RECIPE)
    folder = tmp_path / "work"
    folder.mkdir()
    job = BuildJob(
        root=source.root,
        recipe=source.recipe,
        config="linux_64_",
        options=BuildOptions(),
        folder=folder,
        cache=folder / "cache",
        result=folder / "result.json",
        extra={},
        channel=folder / "channel",
    )
    rendered = render.finalise(render.render(source, expand.read(source, job.config)))
    builder = Builder(
        job=job,
        rendered=rendered,
        channel=Channel(root=folder / "channel"),
        sources=("file:///channel",),
        engine=EngineCalls.of(job, rendered),
        step_cache=step_cache_of(job, rendered, reporter := StepReporter()),
        reporter=reporter,
    )
    (staging,) = rendered.stagings

    def key(dependencies: tuple[str, ...] | None) -> str:
        compile_ = dataclasses.replace(builder, dependencies=dependencies).compile(staging)
        return digest(compile_.inputs(compile_.plan(compile_.folder)))

    assert key(("gxx-12-0.conda", "cython-3.1-0.conda")) == key(("cython-3.1-0.conda", "gxx-12-0.conda"))
    assert len({key(("gxx-12-0.conda",)), key(("gxx-13-0.conda",)), key(None)}) == 3
