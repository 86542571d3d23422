"""The build of a config: names of emulators, compiles that run again, packages that are made at the same moment."""

from __future__ import annotations

import dataclasses
import threading
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BuildFailed, KilnError, SystemFault
from kiln.build.config_build import (
    CompileStepRunner,
    ConfigBuilder,
    _independent_groups,
    config_step_cache,
    config_with_emulator,
)
from kiln.build.engine.recipe import variant_variables
from kiln.build.engine_calls import EngineCalls, StepResult
from kiln.build.job.messages import StepReporter
from kiln.conda.channel import LocalChannel
from kiln.feedstock import config_file
from kiln.recipe import pins, render
from kiln.state.store.compile_cache import json_digest
from tests import builders
from tests.unit.recipe.v1.test_rendering import feedstock

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.build.job.messages import ReportedStep
    from kiln.build.steps import CompileStep


META = "package:\n  name: a\n  version: 1\nrequirements:\n  build:\n    - {{ compiler('c') }}\n"


FORGE = """\
provider:
  linux_64: default
  linux_aarch64: default
  osx_64: null
  win_64: null
build_platform:
  linux_aarch64: linux_64
"""


def test_scripts_of_cross_compiled_configs_find_qemu_user_if_it_is_here(tmp_path: Path) -> None:
    feedstock = builders.expanded(tmp_path / "feedstock", META, "", FORGE)
    native, cross = (
        pins.close_static_pins(render.render(feedstock, config))
        for config in config_file.read_configs(feedstock, ("linux_64_", "linux_aarch64_"))
    )
    qemu = tmp_path / "bin" / "qemu-aarch64-static"
    qemu.parent.mkdir()
    qemu.touch(mode=0o755)
    environment = {"PATH": str(qemu.parent)}
    variables = variant_variables(config_with_emulator(cross, environment))
    assert variables["CROSSCOMPILING_EMULATOR"] == variables["CMAKE_CROSSCOMPILING_EMULATOR"] == str(qemu)
    assert config_with_emulator(cross, environment).outputs == cross.outputs, (
        "neither hash nor name of the package change"
    )
    assert config_with_emulator(native, environment) is native
    assert config_with_emulator(cross, {"PATH": str(tmp_path)}) is cross


RECIPE = """\
recipe: {name: r, version: '1'}
outputs:
  - staging: {name: s}
    build: {script: [make]}
  - package: {name: a}
    inherit: s
"""


def builder_in(tmp_path: Path, recipe: str = RECIPE) -> ConfigBuilder:
    source = feedstock(tmp_path / "feedstock", recipe)
    folder = tmp_path / "work"
    folder.mkdir()
    job = builders.build_job(source.root, folder=folder, channel=folder / "channel")
    rendered = pins.close_static_pins(render.render(source, config_file.read_config(source, job.config)))
    return ConfigBuilder(
        job=job,
        rendered=rendered,
        channel=LocalChannel(root=folder / "channel"),
        sources=("file:///channel",),
        engine=EngineCalls.for_config(job, rendered, {}),
        step_cache=config_step_cache(job, rendered, reporter := StepReporter()),
        reporter=reporter,
    )


def test_a_rehearsal_compiles_again_with_another_compiler_of_the_machine(tmp_path: Path) -> None:
    builder = builder_in(tmp_path)
    (staging,) = builder.rendered.stagings

    def key(dependencies: tuple[str, ...] | None) -> str:
        compile_ = CompileStepRunner(builder=dataclasses.replace(builder, dependencies=dependencies), staging=staging)
        return json_digest(compile_.cache_key_inputs(compile_.plan(compile_.folder)))

    assert key(("gxx-12-0.conda", "cython-3.1-0.conda")) == key(("cython-3.1-0.conda", "gxx-12-0.conda"))
    assert len({key(("gxx-12-0.conda",)), key(("gxx-13-0.conda",)), key(None)}) == 3


BUSY = "script failed with exit code 37\nFATAL: couldn't connect to server (2776) after 120 seconds."


@pytest.mark.parametrize(
    ("failures", "error"),
    [
        ([BuildFailed("the script failed", why=BUSY)], None),
        ([BuildFailed("the script failed", why=BUSY)] * 2, SystemFault),
        ([BuildFailed("the script failed", why="error: expected ';'")], BuildFailed),
        ([SystemFault("no permission")], SystemFault),
    ],
)
def test_a_compile_whose_bazel_server_did_not_start_runs_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: list[KilnError], error: type[KilnError] | None
) -> None:
    builder, left = builder_in(tmp_path), list(failures)
    (staging,) = builder.rendered.stagings
    compile_ = CompileStepRunner(builder=dataclasses.replace(builder, dependencies=None), staging=staging)

    def execute(_: EngineCalls, step: CompileStep, display: ReportedStep) -> Path:
        if left:
            raise left.pop()
        work = tmp_path / "tree"
        work.mkdir()
        step.folder.mkdir(parents=True)
        (step.folder / "work_directory").write_text(str(work))
        package = step.folder / "s.conda"
        package.touch()
        return package

    monkeypatch.setattr(EngineCalls, "build_package_with_retries", execute)
    if error is None:
        assert [path.name for path in compile_.run().paths] == ["s.conda"]
        return
    with pytest.raises(error) as raised:
        compile_.run()
    assert type(raised.value) is error
    assert left == []


TOGETHER = """\
recipe: {name: r, version: '1'}
outputs:
  - package: {name: a}
  - package: {name: b}
    requirements: {host: [zlib, other]}
  - package: {name: c}
    requirements: {build: [b >=1]}
  - package: {name: d}
"""


def test_outputs_are_made_at_the_same_moment_unless_one_needs_another(tmp_path: Path) -> None:
    builder = builder_in(tmp_path, TOGETHER)
    groups = list(_independent_groups(builder.plan_packages({})))
    assert [[step.output.name for step in group] for group in groups] == [["a", "b", "d"], ["c"]]


def test_calls_of_several_workers_give_their_results_in_order_and_the_first_failure_ends_them(tmp_path: Path) -> None:
    builder = dataclasses.replace(builder_in(tmp_path), workers=2)
    limit, meet, began = ContextVar("limit", default=0), threading.Barrier(2, timeout=30), list[str]()

    def call(name: str, *, fails: bool = False) -> StepResult:
        began.append(name)
        if len(began) <= 2:
            meet.wait()  # passes where both run at the same moment
        if fails:
            raise BuildFailed(name)
        return StepResult(paths={}, detail={"name": name, "limit": limit.get()}, seconds=0, reused=False)

    limit.set(7)
    results = builder.run_at_once([partial(call, name) for name in "abc"], weights=[1, 3, 2])
    assert [result.detail for result in results] == [{"name": name, "limit": 7} for name in "abc"]
    assert set(began[:2]) == {"b", "c"}
    began.clear()
    with pytest.raises(BuildFailed, match="b"):
        builder.run_at_once([partial(call, "a"), partial(call, "b", fails=True), *[partial(call, "c")] * 50])
    assert len(began) < 52
