"""Which configs share a cache: all that differ in Python alone, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.recipe.feedstock import BuildConfig
from kiln.state.store.compile_cache import compile_cache_name, toolchain_digest

if TYPE_CHECKING:
    from pathlib import Path

VARIANT = {
    "c_compiler_version": "14",
    "cuda_compiler_version": "12.9",
    "cudnn": "9.3",
    "microarch_level": "1",
    "numpy": "1.26",
    "python": "3.11.* *_cpython",
    "docker_image": "quay.io/a:1",
    "channel_sources": "conda-forge",
}


def key(where: str = "sha256:1", platform: str = "linux-64", **changed: str) -> str:
    variant = {name: (value,) for name, value in {**VARIANT, **changed}.items()}
    zipped = (("python", "numpy", "python_impl"),)
    config = BuildConfig(name="x", platform=platform, variant=variant, zip_keys=zipped, pin_run_as_build={})
    return compile_cache_name(config, where=where)


@pytest.mark.parametrize(
    "changed",
    [
        {"c_compiler_version": "15"},
        {"cuda_compiler_version": "12.5"},
        {"cudnn": "9.8"},
        {"microarch_level": "3"},
        {"CFLAGS": "-O3"},
        {"where": "sha256:2"},
        {"platform": "linux-aarch64"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_changes_the_result_changes_the_cache(changed: dict[str, str]) -> None:
    assert key(**changed) != key()


@pytest.mark.parametrize(
    "changed",
    [
        {"python": "3.12.* *_cpython", "numpy": "2", "python_impl": "cpython"},
        {"docker_image": "localhost/the-same-by-another-name"},
        {"channel_sources": "file:///elsewhere"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_does_not_change_it_shares_the_cache(changed: dict[str, str]) -> None:
    assert key(**changed) == key()


def test_a_machine_without_images_is_known_by_its_compilers(tmp_path: Path) -> None:
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    before = toolchain_digest(str(tmp_path))
    assert toolchain_digest(str(tmp_path)) == before
    compiler.write_text("#!/bin/sh\n# another release\n")
    assert toolchain_digest(str(tmp_path)) != before
