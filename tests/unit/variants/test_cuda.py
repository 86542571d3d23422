"""A config's CUDA version, and the virtual packages of a machine without a GPU."""

from __future__ import annotations

import pytest

from kiln.model.build_config import BuildConfig
from kiln.variants.cuda import cuda_of, offered


def config(*versions: str) -> BuildConfig:
    variant = {"cuda_compiler_version": versions} if versions else {}
    return BuildConfig(name="a", platform="linux-64", variant=variant, pin_run_as_build={})


@pytest.mark.parametrize(("versions", "expected"), [((), None), (("None",), None), (("12.9",), "12.9")])
def test_the_cuda_version_of_a_config(versions: tuple[str, ...], expected: str | None) -> None:
    assert cuda_of(config(*versions)) == expected


def test_only_a_cuda_config_gets_a_virtual_package_that_the_machine_lacks() -> None:
    machine = {"__glibc": ("2.36", "0")}
    assert offered(machine, config()) == machine
    assert offered(machine, config("12.9")) == {**machine, "__cuda": ("12.9", "0")}
    driver = {**machine, "__cuda": ("12.4", "0")}
    assert offered(driver, config("12.9")) == driver, "the machine's driver is not exaggerated"
