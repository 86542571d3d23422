"""``__cuda_arch`` has the version that CEP 46 gives it, and is absent where the CEP says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.compat import machine
from kiln.conda import solve

if TYPE_CHECKING:
    from collections.abc import Mapping


def version(overrides: Mapping[str, str], *capabilities: str, has_cuda: bool = True) -> str | None:
    return machine.cuda_arch_version(overrides, has_cuda=has_cuda, capabilities=lambda: capabilities)


@pytest.mark.parametrize(
    ("capabilities", "lowest"),
    [(("9.0",), "9.0"), (("12.0", "9.0", "10.3"), "9.0"), (("7.5", "7.0"), "7.0"), ((), None), (("9.0a",), None)],
)
def test_the_lowest_capability_of_all_gpus_counts(capabilities: tuple[str, ...], lowest: str | None) -> None:
    assert version({}, *capabilities) == lowest


@pytest.mark.parametrize("overrides", [{}, {"CONDA_OVERRIDE_CUDA_ARCH": "9.0"}, {"CONDA_OVERRIDE_CUDA_ARCH": ""}])
def test_without_cuda_it_is_absent(overrides: dict[str, str]) -> None:
    assert version(overrides, "9.0", has_cuda=False) is None


def test_an_override_replaces_the_gpus_and_an_empty_one_removes_them() -> None:
    assert version({"CONDA_OVERRIDE_CUDA_ARCH": "8.6"}, "9.0") == "8.6"
    assert version({"CONDA_OVERRIDE_CUDA_ARCH": "8.6"}) == "8.6"
    assert version({"CONDA_OVERRIDE_CUDA_ARCH": ""}, "9.0") is None


def test_gpus_are_not_detected_where_the_answer_does_not_depend_on_them() -> None:
    def detect() -> tuple[str, ...]:
        raise AssertionError

    assert machine.cuda_arch_version({"CONDA_OVERRIDE_CUDA_ARCH": "8.6"}, has_cuda=True, capabilities=detect) == "8.6"
    assert machine.cuda_arch_version({}, has_cuda=False, capabilities=detect) is None


@pytest.mark.parametrize("value", ["nine", "9", "sm_90", "9.0a", "9.0=0", "9.0\n"])
def test_another_value_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="is not a compute capability"):
        version({"CONDA_OVERRIDE_CUDA_ARCH": value})


@pytest.mark.parametrize(
    ("overrides", "cuda", "expected"),
    [
        ({}, "12.9", True),
        ({}, None, False),
        ({"CONDA_OVERRIDE_CUDA": "12.9"}, None, True),
        ({"CONDA_OVERRIDE_CUDA": ""}, "12.9", False),
    ],
)
def test_cuda_is_there_as_its_override_says(overrides: dict[str, str], cuda: str | None, *, expected: bool) -> None:
    assert machine.has_virtual_cuda_package(overrides, cuda) is expected


@pytest.mark.processes
@pytest.mark.parametrize(
    ("overrides", "arch"),
    [
        ({"CONDA_OVERRIDE_CUDA": "12.9", "CONDA_OVERRIDE_CUDA_ARCH": "8.6"}, ("8.6", "0")),
        ({"CONDA_OVERRIDE_CUDA": "12.9", "CONDA_OVERRIDE_CUDA_ARCH": ""}, None),
        ({"CONDA_OVERRIDE_CUDA": "", "CONDA_OVERRIDE_CUDA_ARCH": "8.6"}, None),
    ],
)
def test_solves_are_given_it_beside_cuda(overrides: dict[str, str], arch: tuple[str, str] | None) -> None:
    packages = solve.machine_virtual_packages(overrides)
    assert packages.get("__cuda_arch") == arch
    assert packages.get("__cuda") == (("12.9", "0") if overrides["CONDA_OVERRIDE_CUDA"] else None)
