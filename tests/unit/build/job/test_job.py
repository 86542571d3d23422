"""Steps and outputs are found by their names and by patterns, and configs of one CUDA share a compile."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import UsageError
from kiln.build.job.job import (
    BuildJob,
    BuildOptions,
    ConfigJob,
    channels_needed_by_config,
    find_matching_output,
    find_matching_staging,
    memory_limit,
    needs_network,
    python_versions_of_config,
    require_known_step,
    step_names,
)
from kiln.container.engine import Engine, EngineKind
from kiln.recipe import pins
from kiln.recipe.rendered import Checkout, OutputTest, RenderedConfig, Requirements, Source, Staging
from kiln.recipe.variants.files import compile_group
from tests import builders


def test_configs_of_one_cuda_and_platform_share_a_group() -> None:
    configs = [builders.config(cuda_compiler_version=version) for version in ("None", "12.9")]
    arm = builders.config(platform="linux-aarch64", cuda_compiler_version="12.9")
    assert [compile_group(config) for config in (*configs, arm)] == ["cpu", "cuda12.9", "cuda12.9-linux-aarch64"]


RECIPE = """package:
  name: app-split
  version: 1
build:
  script: make
outputs:
  - name: app
    requirements:
      run:
        - libapp
  - name: libapp
"""


@pytest.fixture
def split(tmp_path: Path) -> RenderedConfig:
    """Return a config whose first output depends on its second one."""
    return pins.close_static_pins(builders.rendered(builders.feedstock(tmp_path / "feedstock", RECIPE)))


def test_steps_are_in_the_order_in_which_they_run_each_name_once(split: RenderedConfig) -> None:
    assert step_names(split) == ("render", "compile", "build libapp", "build app", "test libapp", "test app")
    others = (dataclasses.replace(output, build_string="other") for output in split.outputs)
    twice = dataclasses.replace(split, outputs=(*split.outputs, *others))
    assert step_names(twice) == step_names(split)


def test_a_step_that_no_config_has_is_refused_with_the_steps_that_it_has(split: RenderedConfig) -> None:
    require_known_step([split], "build libapp", engine="rattler-build")
    with pytest.raises(UsageError, match="linux_64_ has no step 'build lib'") as caught:
        require_known_step([split], "build lib", engine="rattler-build")
    assert caught.value.why.startswith("its steps are 'render', 'compile', 'build libapp',")
    assert caught.value.hint.startswith("did you mean 'build libapp'")
    with pytest.raises(UsageError) as caught:
        require_known_step([split], "7", engine="rattler-build")
    assert caught.value.hint == "name one of these"


def test_an_engine_with_one_step_cannot_start_at_another() -> None:
    with pytest.raises(UsageError, match="--from-step requires --engine rattler-build: conda-build has one step only"):
        require_known_step((), "render", engine="conda-build")


def test_a_build_step_is_found_by_a_pattern_and_the_first_one_without(split: RenderedConfig) -> None:
    stagings = (Staging(name="base"), Staging(name="gpu"))
    several = dataclasses.replace(split, stagings=stagings)
    found = [find_matching_staging(several, pattern) for pattern in ("", "g*", "cpu")]
    assert found == [stagings[0], stagings[1], None]


def test_an_output_is_found_by_its_name_or_its_files_name(split: RenderedConfig) -> None:
    names = [find_matching_output(split, pattern).name for pattern in ("app", "lib*", "libapp-1-*.conda")]
    assert names == ["app", "libapp", "libapp"]
    only = dataclasses.replace(split, outputs=split.outputs[:1])
    assert find_matching_output(only, "") == split.outputs[0]


@pytest.mark.parametrize(
    ("pattern", "what", "why", "hint"),
    [
        ("*app", "2 outputs match '*app'", "they are app, libapp", "did you mean 'app' or 'libapp'?"),
        ("libap", "no output matches 'libap'", "the outputs are compile, libapp, app", "did you mean 'libapp'"),
        ("", "2 outputs match ''", "they are app, libapp", "--output-id NAME"),
    ],
)
def test_a_pattern_that_does_not_match_one_output_is_refused_with_the_names(
    split: RenderedConfig, pattern: str, what: str, why: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        find_matching_output(split, pattern)
    assert (caught.value.what, caught.value.why) == (what, why)
    assert caught.value.hint.startswith(hint)


def test_an_output_that_is_skipped_is_not_found(split: RenderedConfig) -> None:
    app, library = split.outputs
    skipped = dataclasses.replace(split, outputs=(app, dataclasses.replace(library, skip=True)))
    assert find_matching_output(skipped, "*app").name == "app"


def test_a_build_on_the_host_has_the_memory_that_was_requested_and_a_container_its_share() -> None:
    def engine(**fields: Any) -> Engine:
        return Engine(kind=EngineKind.DOCKER, executable="docker", version="27", environment={}, **fields)

    assert memory_limit(None, 8, None) is None
    assert memory_limit(4, 4, None) == 4
    assert memory_limit(None, 8, engine()) == 8
    assert memory_limit(None, 8, engine(memory=2)) == 2, "the engine's machine has less"
    assert memory_limit(None, 8, engine(lacks=("it bounds nothing",))) is None


@pytest.mark.parametrize(
    "options",
    [
        BuildOptions(),
        BuildOptions(distdir=Path("/downloads"), run_arguments=("--gpus", "all"), mirror="https://mirror.example"),
        BuildOptions(rebuild=True, keep_failed=True, debug="", network="always", rehearsal=True, stall=1.5),
    ],
    ids=["defaults", "paths and lists", "flags"],
)
def test_jobs_come_back_from_their_text(options: BuildOptions) -> None:
    shared = ({"name": "lib", "reused": True},)
    build = builders.build_job(Path("/f"), options=options, queue=Path("/f/scripts"), shared_packages=shared)
    assert BuildJob.parse(build.as_text()) == build
    config = builders.config_job(Path("/f"), options=options, variables={"CONFIG": "a"})
    assert ConfigJob.parse(config.as_text()) == config


def test_these_options_build_finished_configs_again() -> None:
    for again in ({"rebuild": True}, {"from_step": "compile"}, {"debug": ""}):
        assert BuildOptions(**again).rebuilds_finished
    assert not BuildOptions(keep_failed=True).rebuilds_finished


LIB = builders.output("lib")
APP = builders.output("app", requirements=Requirements(run=("lib 1 0", "__cuda")))


def test_a_config_that_needs_nothing_of_a_channel_has_none() -> None:
    assert channels_needed_by_config(builders.rendered_config(LIB, APP)) == ()
    assert not needs_network(builders.rendered_config(LIB, APP, sources=(Source(path="src"),)))


def test_the_variants_channels_are_used_in_their_order() -> None:
    needy = dataclasses.replace(LIB, tests=(OutputTest(requires=("pip",)),))
    assert channels_needed_by_config(builders.rendered_config(needy)) == ("conda-forge",)
    assert channels_needed_by_config(builders.rendered_config(needy, channel_sources="a, b")) == ("a", "b")
    assert needs_network(builders.rendered_config(needy))
    assert not needs_network(builders.rendered_config(needy, channel_sources="file:///c"))


def test_what_is_skipped_needs_nothing_and_sources_need_the_network() -> None:
    skipped = dataclasses.replace(LIB, name="x", skip=True, requirements=Requirements(host=("python",)))
    assert channels_needed_by_config(builders.rendered_config(LIB, skipped)) == ()
    assert needs_network(builders.rendered_config(LIB, sources=(Source(url=("https://a",)),)))
    assert needs_network(
        builders.rendered_config(LIB, sources=(Source(checkout=Checkout(program="hg", url="https://a")),))
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("3.11.* *_cpython",), {"3.11"}),
        (("3.10.* *_cpython", "3.13.* *_cp313"), {"3.10", "3.13"}),
        (("3.11", "3.11.9"), {"3.11"}),
        ((), set()),
    ],
)
def test_the_pythons_of_a_config_are_minor_versions(values: tuple[str, ...], expected: set[str]) -> None:
    config = dataclasses.replace(builders.config(), variant={"python": values})
    assert python_versions_of_config(config) == expected
    assert python_versions_of_config(builders.config()) == frozenset()
