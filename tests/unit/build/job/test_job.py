"""Steps and outputs are found by their names and by patterns, and configs of one CUDA share a compile."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import UsageError
from kiln.base.serialization import from_json_values, to_json
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
from kiln.feedstock import matrix
from kiln.recipe import pins, render
from kiln.recipe.feedstock import BuildConfig
from kiln.recipe.rendered import Checkout, Output, OutputTest, RenderedConfig, Requirements, Source, Staging
from kiln.recipe.variants.files import compile_group
from tests import builders

if TYPE_CHECKING:
    from kiln.recipe.feedstock import Feedstock


CONFIG = BuildConfig(name="c", platform="linux-64", variant={}, pin_run_as_build={})


def rendered(*outputs: Output, sources: tuple[Source, ...] = (), **variant: str) -> RenderedConfig:
    config = dataclasses.replace(CONFIG, variant={key: (value,) for key, value in variant.items()})
    return RenderedConfig(config=config, outputs=outputs, stagings=(Staging(sources=sources),))


def test_configs_of_one_cuda_share_a_group() -> None:
    groups = [compile_group(rendered(cuda_compiler_version=version).config) for version in ("None", "12.9")]
    assert groups == ["cpu", "cuda12.9"]


def test_configs_of_two_platforms_share_no_compile() -> None:
    arm = dataclasses.replace(rendered(cuda_compiler_version="12.9").config, platform="linux-aarch64")
    assert compile_group(arm) == "cuda12.9-linux-aarch64"


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
def split_feedstock(tmp_path: Path) -> Feedstock:
    """Return a feedstock whose first output depends on its second one."""
    return builders.feedstock(tmp_path / "feedstock", RECIPE)


@pytest.fixture
def split(split_feedstock: Feedstock) -> RenderedConfig:
    (config,) = matrix.configs(split_feedstock)
    return pins.close_static_pins(render.render(split_feedstock, config))


def test_steps_are_in_the_order_in_which_they_run_each_name_once(split: RenderedConfig) -> None:
    assert step_names(split) == ("render", "compile", "build libapp", "build app", "test libapp", "test app")
    others = (dataclasses.replace(output, build_string="other") for output in split.outputs)
    twice = dataclasses.replace(split, outputs=(*split.outputs, *others))
    assert step_names(twice) == step_names(split)


def test_a_step_that_no_config_has_is_refused_with_the_steps_that_it_has(split_feedstock: Feedstock) -> None:
    configs = matrix.configs(split_feedstock)
    require_known_step(split_feedstock, configs, "build libapp", engine="rattler-build")
    with pytest.raises(UsageError, match="linux_64_ has no step 'build lib'") as caught:
        require_known_step(split_feedstock, configs, "build lib", engine="rattler-build")
    assert caught.value.why.startswith("its steps are 'render', 'compile', 'build libapp',")
    assert caught.value.hint.startswith("did you mean 'build libapp'")
    with pytest.raises(UsageError) as caught:
        require_known_step(split_feedstock, configs, "7", engine="rattler-build")
    assert caught.value.hint == "name one of these"


def test_an_engine_with_one_step_cannot_start_at_another(split_feedstock: Feedstock) -> None:
    with pytest.raises(UsageError, match="--from-step requires --engine rattler-build: conda-build has one step only"):
        require_known_step(split_feedstock, (), "render", engine="conda-build")


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


OPTIONS = BuildOptions(run_arguments=("--gpus", "all"), distdir=Path("/downloads"), from_step="compile", stall=60.0)


BUILD = BuildJob(
    root=Path("/f"),
    recipe=Path("/f/recipe"),
    config="a",
    options=OPTIONS,
    folder=Path("/f/work"),
    cache=Path("/f/cache"),
    result=Path("/f/result.json"),
    extra={"sha": "1"},
    channel=Path("/f/channel"),
    queue=Path("/f/scripts"),
    shared_packages=({"name": "lib", "reused": True},),
)


CONFIG_2 = ConfigJob(
    root="/f",
    config="a",
    key="k",
    sources="s",
    shared="s",
    options=OPTIONS,
    container="docker",
    cores=2,
    variables={"CONFIG_2": "a"},
    environment={"PATH": "/bin"},
    log="/f/log",
    group="cpu",
    cache_key="c",
    compile_memory=1,
)


def test_a_building_processs_job_comes_back_with_its_paths() -> None:
    assert BuildJob.parse(BUILD.as_text()) == BUILD


def test_a_configs_job_comes_back_from_its_text() -> None:
    assert ConfigJob.parse(CONFIG_2.as_text()) == CONFIG_2


@pytest.mark.parametrize(
    "options",
    [
        BuildOptions(),
        BuildOptions(distdir=Path("/downloads"), run_arguments=("--gpus", "all"), mirror="https://mirror.example"),
        BuildOptions(rebuild=True, keep_failed=True, debug="", network="always", rehearsal=True, stall=1.5),
    ],
    ids=["defaults", "paths and lists", "flags"],
)
def test_options_survive_json(options: BuildOptions) -> None:
    assert from_json_values(BuildOptions, json.loads(json.dumps(to_json(options)))) == options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (BuildOptions(), False),
        (BuildOptions(keep_failed=True), False),
        (BuildOptions(rebuild=True), True),
        (BuildOptions(from_step="compile"), True),
        (BuildOptions(debug=""), True),
    ],
    ids=["defaults", "keep failed", "rebuild", "from step", "debug"],
)
def test_these_options_build_finished_configs_again(options: BuildOptions, expected: bool) -> None:
    assert options.rebuilds_finished is expected


LIB = Output(
    name="lib", version="1", build_number=0, build_string="0", subdir="linux-64", run_exports={}, about={}, used={}
)


APP = dataclasses.replace(LIB, name="app", requirements=Requirements(run=("lib 1 0", "__cuda")))


def test_a_config_that_needs_nothing_of_a_channel_has_none() -> None:
    assert channels_needed_by_config(rendered(LIB, APP)) == ()
    assert not needs_network(rendered(LIB, APP, sources=(Source(path="src"),)))


def test_the_variants_channels_are_used_in_their_order() -> None:
    needy = dataclasses.replace(LIB, tests=(OutputTest(requires=("pip",)),))
    assert channels_needed_by_config(rendered(needy)) == ("conda-forge",)
    assert channels_needed_by_config(rendered(needy, channel_sources="a, b")) == ("a", "b")
    assert needs_network(rendered(needy))
    assert not needs_network(rendered(needy, channel_sources="file:///c"))


def test_what_is_skipped_needs_nothing_and_sources_need_the_network() -> None:
    skipped = dataclasses.replace(LIB, name="x", skip=True, requirements=Requirements(host=("python",)))
    assert channels_needed_by_config(rendered(LIB, skipped)) == ()
    assert needs_network(rendered(LIB, sources=(Source(url=("https://a",)),)))
    assert needs_network(rendered(LIB, sources=(Source(checkout=Checkout(program="hg", url="https://a")),)))


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
    assert python_versions_of_config(dataclasses.replace(CONFIG, variant={"python": values})) == expected
    assert python_versions_of_config(CONFIG) == frozenset()
