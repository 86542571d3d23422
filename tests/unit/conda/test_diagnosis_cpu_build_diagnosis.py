"""A build for the CPU on a machine with a GPU is explained by the spec, the GPU or the driver that caused it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.conda.diagnosis import TargetMachine, cpu_build_notes
from tests.unit.conda.local_solver import local_solver, package

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

CPU = package("app", "2", "cpu_py312_0", "python")
CUDA = package("app", "2", "cuda129_py312_0", "python", "__cuda >=12.9", number=200)
PYTHONS = (package("python", "3.12", "0"), package("python", "3.13", "0"))
REASON = "app 2 cpu_py312_0 is a build for the CPU, and this machine has a driver for CUDA: "


def notes(
    folder: Path, packages: tuple[dict[str, Any], ...], specs: tuple[str, ...], **virtual: str
) -> tuple[str, ...]:
    """Return the notes on what a solve chooses for a machine with these virtual packages."""
    solve = local_solver(folder, *packages, *PYTHONS)
    machine = TargetMachine(virtual_packages={f"__{name}": (version, "0") for name, version in virtual.items()})
    return cpu_build_notes(solve(specs, virtual_packages=machine.virtual_packages), specs, solve, machine)


def test_a_driver_that_is_too_old_for_the_builds_for_cuda_is_the_cause(tmp_path: Path) -> None:
    # 13.0 is tried and fits, 12.0 is no newer than the machine's own
    (note,) = notes(tmp_path, (CPU, CUDA), ("app",), cuda="12.4")
    assert note == (
        f"{REASON}its builds for CUDA need a driver for CUDA 13.0, and this one runs up to 12.4; "
        "with driver 580.65.06 or newer it would be 2 cuda129_py312_0"
    )


def test_the_oldest_sufficient_cuda_is_named(tmp_path: Path) -> None:
    built_for_12 = {**CUDA, "depends": ["python", "__cuda >=12"]}
    (note,) = notes(tmp_path, (CPU, built_for_12), ("app",), cuda="11.8")
    assert "need a driver for CUDA 12.0, and this one runs up to 11.8" in note


def test_a_gpu_without_code_in_the_builds_for_cuda_is_the_cause(tmp_path: Path) -> None:
    built_for_new = {**CUDA, "constrains": ["__cuda_arch >=7.5"]}
    (note,) = notes(tmp_path, (CPU, built_for_new), ("app",), cuda="12.9", cuda_arch="6.1")
    assert note == (
        f"{REASON}its builds for CUDA have no code for a GPU of compute capability 6.1, the lowest here; on a newer "
        "GPU it would be 2 cuda129_py312_0; if another GPU of this machine is meant, set CONDA_OVERRIDE_CUDA_ARCH to "
        "its compute capability"
    )


def test_a_spec_that_excludes_the_builds_for_cuda_is_the_cause_even_where_another_driver_would_help(
    tmp_path: Path,
) -> None:
    for_new_python = {**CUDA, "build": "cuda129_py313_0", "depends": ["python 3.13.*", "__cuda >=12.9"]}
    for_new_driver = {**CUDA, "build": "cuda130_py312_0", "depends": ["python 3.12.*", "__cuda >=13.0"]}
    (note,) = notes(tmp_path, (CPU, for_new_python, for_new_driver), ("python 3.12.*", "app"), cuda="12.9")
    assert note == (
        f"{REASON}no build for CUDA fits python 3.12.*; without python 3.12.* it would be 2 cuda129_py313_0; "
        "'app * cpu*' requests the CPU"
    )


@pytest.mark.parametrize(
    ("specs", "virtual"),
    [
        (("app",), {}),  # no driver
        (("app",), {"cuda": "12.9"}),  # a build for CUDA
        (("app * cpu*",), {"cuda": "12.4"}),
        (("python",), {"cuda": "12.4"}),
    ],
)
def test_a_build_that_was_requested_or_that_fits_the_machine_has_no_note(
    tmp_path: Path, specs: tuple[str, ...], virtual: dict[str, str]
) -> None:
    assert notes(tmp_path, (CPU, CUDA), specs, **virtual) == ()


@pytest.mark.parametrize("request_for_cpu", ["app-cpu", "app * cpu*"])
def test_a_request_for_the_cpu_is_not_called_the_cause(tmp_path: Path, request_for_cpu: str) -> None:
    named = package("app-cpu", "2", "0", "app 2 cpu*")
    cpu = {**CPU, "depends": ["python", "aaa * cpu*"]}
    aaa = (package("aaa", "1", "cpu_0"), package("aaa", "1", "cuda_0", "__cuda", number=200))
    assert notes(tmp_path, (cpu, CUDA, named, *aaa), (request_for_cpu, "aaa"), cuda="12.9") == ()


def test_a_package_that_has_no_build_for_cuda_has_no_note(tmp_path: Path) -> None:
    assert notes(tmp_path, (CPU,), ("app",), cuda="11.8", cuda_arch="6.1") == ()


def test_a_driver_that_is_too_new_for_the_builds_for_cuda_is_not_called_too_old(tmp_path: Path) -> None:
    for_old_driver = {**CUDA, "depends": ["python", "__cuda >=12,<13"]}
    assert notes(tmp_path, (CPU, for_old_driver), ("app",), cuda="13.0") == ()


def test_specs_that_do_not_solve_for_a_newer_driver_have_no_note(tmp_path: Path) -> None:
    other = package("other", "1", "0", "__cuda <13")
    assert notes(tmp_path, (CPU, CUDA, other), ("app", "other"), cuda="12.4") == ()


def test_of_several_packages_the_requested_one_is_explained(tmp_path: Path) -> None:
    base = package("aaa", "1", "cpu_0")
    base_cuda = package("aaa", "1", "cuda_0", "__cuda >=12.9", number=200)
    app, app_cuda = ({**entry, "depends": [*entry["depends"], "aaa"]} for entry in (CPU, CUDA))
    (note,) = notes(tmp_path, (app, app_cuda, base, base_cuda), ("app",), cuda="12.4")
    assert note.startswith(REASON)
