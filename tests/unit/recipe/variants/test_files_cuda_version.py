"""The virtual packages that tests of a config count on, with and without a GPU."""

from __future__ import annotations

import dataclasses

import pytest

from kiln.recipe.feedstock import BuildConfig
from kiln.recipe.variants.files import cuda_arch_of_config, cuda_version_of_config, virtual_packages_with_cuda

CONFIG = BuildConfig(
    name="linux_64_", platform="linux-64", variant={"cuda_compiler_version": ("12.9",)}, pin_run_as_build={}
)
BARE = {"__glibc": ("2.36", "0")}
H200 = {**BARE, "__cuda": ("13.0", "0"), "__cuda_arch": ("9.0", "0")}


def with_keys(**keys: str) -> BuildConfig:
    return dataclasses.replace(CONFIG, variant={**CONFIG.variant, **{name: (value,) for name, value in keys.items()}})


def test_a_cuda_config_is_tested_as_with_a_gpu() -> None:
    assert virtual_packages_with_cuda(BARE, CONFIG) == {**BARE, "__cuda": ("12.9", "0"), "__cuda_arch": ("999.0", "0")}
    config = with_keys(cuda_arch_version="9.0")
    assert virtual_packages_with_cuda(BARE, config)["__cuda_arch"] == ("9.0", "0")


def test_a_real_gpu_stays_as_it_is() -> None:
    assert virtual_packages_with_cuda(H200, CONFIG) == H200


def test_a_driver_without_a_gpu_is_completed() -> None:
    driver = {**BARE, "__cuda": ("13.0", "0")}
    assert virtual_packages_with_cuda(driver, CONFIG) == {**driver, "__cuda_arch": ("999.0", "0")}


def test_a_cpu_config_is_tested_on_the_machine_as_it_is() -> None:
    config = with_keys(cuda_compiler_version="None")
    assert cuda_version_of_config(config) is None
    assert virtual_packages_with_cuda(BARE, config) == BARE


@pytest.mark.parametrize(("keys", "arch"), [({}, "999.0"), ({"cuda_arch_version": "8.6"}, "8.6")])
def test_the_capability_is_the_variants_or_newer_than_any(keys: dict[str, str], arch: str) -> None:
    assert cuda_arch_of_config(with_keys(**keys)) == arch


@pytest.mark.parametrize(("keys", "cuda"), [((), None), (("None",), None), (("12.9",), "12.9")])
def test_the_cuda_version_of_a_config(keys: tuple[str, ...], cuda: str | None) -> None:
    variant = {"cuda_compiler_version": keys} if keys else {}
    assert cuda_version_of_config(dataclasses.replace(CONFIG, variant=variant)) == cuda
