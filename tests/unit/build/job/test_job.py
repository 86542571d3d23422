"""Steps and outputs are found by their names and by patterns, and configs of one CUDA share a compile."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import UsageError
from kiln.build.job.job import (
    find_matching_output,
    find_matching_staging,
    memory_limit,
    require_known_step,
    step_names,
)
from kiln.container.engine import Engine, EngineKind
from kiln.feedstock import matrix
from kiln.recipe import pins, render
from kiln.recipe.feedstock import BuildConfig
from kiln.recipe.rendered import Output, RenderedConfig, Source, Staging
from kiln.recipe.variants.files import compile_group
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

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
