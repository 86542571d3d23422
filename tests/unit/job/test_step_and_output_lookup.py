"""Which channels a config needs, and whether it needs the network."""

from __future__ import annotations

import dataclasses

from kiln.model.matrix_config import BuildConfig
from kiln.model.rendered import Output, RenderedConfig, Source, Staging
from kiln.variants.cuda_version import compile_group

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
