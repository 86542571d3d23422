"""The explanation when no packages satisfy the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import SolveFailed
from kiln.conda.diagnosis import TargetMachine, cpu_build_notes, explain_failed_solve
from tests.unit.conda.local_solver import local_solver, package

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any


def explanation(
    folder: Path,
    packages: Sequence[dict[str, Any]],
    specs: tuple[str, ...],
    *,
    overridden: tuple[str, ...] = (),
    most: int = 16,
    **virtual: str,
) -> SolveFailed:
    """Return the explanation of a solve that fails on a machine with these virtual packages."""
    solve = local_solver(folder, *packages)
    machine = TargetMachine(
        virtual_packages={f"__{name}": (version, "0") for name, version in virtual.items()},
        overridden=frozenset(overridden),
        driver=lambda: "550.54.14",
    )
    with pytest.raises(SolveFailed) as caught:
        solve(specs, virtual_packages=machine.virtual_packages)
    return explain_failed_solve(caught.value, specs, solve, channels=("channel",), machine=machine, most=most)


NEEDS_DRIVER = (
    package("app-gpu", "2", "0", "__cuda >=12.5"),
    package("app-cpu", "2", "0"),
    package("other", "1", "0"),
)


def test_a_package_that_needs_a_newer_driver_is_named_with_the_one_for_the_cpu(tmp_path: Path) -> None:
    error = explanation(tmp_path, NEEDS_DRIVER, ("other", "app-gpu 2.*"), cuda="12.4")
    assert error.what.startswith("app-gpu 2.* cannot run here: this needs an NVIDIA driver 555.42.02 or newer, for")
    cause, said, *_ = error.why.splitlines()
    assert cause == "this machine's driver, 550.54.14, runs CUDA up to 12.4"
    assert said == "the solver says"
    assert error.hint.startswith("request app-cpu 2.*, which needs no GPU; install NVIDIA's driver 555.42.02 or newer;")


def test_a_package_for_the_cpu_that_cannot_be_installed_either_is_not_suggested(tmp_path: Path) -> None:
    error = explanation(tmp_path, NEEDS_DRIVER[:1], ("app-gpu",))
    assert error.why.startswith("no working NVIDIA driver found on this machine")
    assert error.hint.startswith("install NVIDIA's driver 555.42.02 or newer; or, on a login node")


@pytest.mark.parametrize(
    ("virtual", "cause"),
    [
        ({"cuda": "12.0"}, "CONDA_OVERRIDE_CUDA says that this machine has CUDA 12.0"),
        ({}, "CONDA_OVERRIDE_CUDA says that this machine has no driver"),
    ],
)
def test_a_cuda_that_the_user_has_set_is_the_cause_and_not_the_driver(
    tmp_path: Path, virtual: dict[str, Any], cause: str
) -> None:
    error = explanation(tmp_path, NEEDS_DRIVER, ("app-gpu",), overridden=("__cuda",), **virtual)
    assert error.why.splitlines()[0] == cause


@pytest.mark.parametrize(
    ("overridden", "cause"),
    [
        ((), "the lowest compute capability of this machine's GPUs is 6.1"),
        (("__cuda_arch",), "CONDA_OVERRIDE_CUDA_ARCH says that the lowest compute capability is 6.1"),
    ],
)
def test_a_package_without_code_for_the_gpu_is_named_with_its_compute_capability(
    tmp_path: Path, overridden: tuple[str, ...], cause: str
) -> None:
    new_only = {**package("app-gpu", "2", "0", "__cuda"), "constrains": ["__cuda_arch >=7.5"]}
    packages = (new_only, *NEEDS_DRIVER[1:])
    error = explanation(tmp_path, packages, ("app-gpu", "other"), overridden=overridden, cuda="12.4", cuda_arch="6.1")
    assert error.what == "app-gpu cannot run here: its builds have no code for so old a GPU"
    assert error.why.splitlines()[0] == cause
    assert error.hint.startswith("request app-cpu, which needs no GPU; or, if another GPU of this machine is meant")


def test_packages_that_need_a_newer_c_library_together_are_named(tmp_path: Path) -> None:
    packages = [package("a", "1", "0", "c !=2"), package("b", "1", "0", "c >=2")]
    packages += [package("c", "1", "0"), package("c", "2", "0"), package("c", "3", "0", "__glibc >=2.34")]
    error = explanation(tmp_path, packages, ("a", "b"), glibc="2.28")
    assert error.what == "a and b need a newer C library than this machine's"


def test_specs_that_exclude_each_other_are_named_without_the_others(tmp_path: Path) -> None:
    packages = [package("a", "1", "0", "c 1"), package("b", "1", "0", "c 2"), package("d", "1", "0")]
    packages += [package("c", version, "0") for version in ("1", "2")]
    error = explanation(tmp_path, packages, ("d", "a", "b"), cuda="12.9")
    assert error.what == "a and b exclude each other, on any machine"
    assert error.why.startswith("the solver says\n")


def test_the_two_variants_of_tensorflow_exclude_each_other(tmp_path: Path) -> None:
    packages = [package(f"tensorflow-{kind}", "1", "0", f"c {kind}") for kind in ("cpu", "gpu")]
    packages += [package("c", version, "0") for version in ("cpu", "gpu")]
    error = explanation(tmp_path, packages, ("tensorflow-gpu", "tensorflow-cpu"))
    assert error.hint == "request one of them; tensorflow alone selects the build for the machine"
    assert explanation(tmp_path, packages, ("nothing",)).hint.startswith("check its name and version")


def test_a_version_that_does_not_exist_is_reported_with_the_newest_ones_of_the_channel(tmp_path: Path) -> None:
    packages = [package("app", version, "0", "__cuda >=12") for version in ("1.9", "1.10", "2.0", "2.1", "2.2", "0")]
    error = explanation(tmp_path, packages, ("app 3.*",))
    assert error.what == "app 3.* cannot be installed from channel on any machine"
    assert error.why.startswith("the newest versions there of app are 2.2, 2.1, 2.0, 1.10, 1.9\nthe solver says\n")
    assert "app 3.*" in error.why


def test_a_driver_that_is_too_new_is_not_called_too_old(tmp_path: Path) -> None:
    packages = [package("app-gpu", "1", "0", "__cuda >=12,<13"), *NEEDS_DRIVER[1:]]
    error = explanation(tmp_path, packages, ("app-gpu",), cuda="13.0")
    assert error.what == "app-gpu cannot be chosen here: this asks for a driver of CUDA 12.0, not for a newer one"
    assert error.why.startswith("this machine's driver, 550.54.14, runs CUDA up to 13.0")
    assert error.hint.endswith("CONDA_OVERRIDE_CUDA=12.0 chooses these packages")


def test_a_driver_and_a_c_library_that_are_missing_together_are_both_named(tmp_path: Path) -> None:
    packages = [package("app-gpu", "2", "0", "__cuda >=12.5", "__glibc >=2.28"), *NEEDS_DRIVER[1:]]
    error = explanation(tmp_path, packages, ("app-gpu",), glibc="2.17")
    assert error.what.startswith(
        "app-gpu cannot run here: this needs an NVIDIA driver 555.42.02 or newer, for CUDA 12.5"
    )
    assert error.what.endswith("; and app-gpu needs a newer C library than this machine's")
    assert error.why.splitlines()[:2] == ["no working NVIDIA driver found on this machine", "glibc here is 2.17"]


def test_the_solvers_own_message_is_shown_up_to_the_requested_number_of_lines(tmp_path: Path) -> None:
    packages = [package("a", str(number), "0", f"missing{number}") for number in range(4)]
    whole = explanation(tmp_path, packages, ("a",)).why.splitlines()
    short = explanation(tmp_path, packages, ("a",), most=2).why.splitlines()
    assert short[:-1] == whole[:3]
    assert short[-1].endswith(f"... and {len(whole) - 3} lines more, with --verbose")


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
    ("specs", "virtual", "packages"),
    [
        ("app", {}, (CUDA,)),  # no driver
        ("app", {"cuda": "12.9"}, (CUDA,)),  # a build for CUDA
        ("app * cpu*", {"cuda": "12.4"}, (CUDA,)),
        ("python", {"cuda": "12.4"}, (CUDA,)),
        ("app", {"cuda": "11.8", "cuda_arch": "6.1"}, ()),  # there is none for CUDA
        ("app", {"cuda": "13.0"}, ({**CUDA, "depends": ["python", "__cuda >=12,<13"]},)),  # the driver is too new
        ("app; other", {"cuda": "12.4"}, (CUDA, package("other", "1", "0", "__cuda <13"))),  # no driver suits both
    ],
)
def test_a_build_that_was_requested_or_that_fits_the_machine_has_no_note(
    tmp_path: Path, specs: str, virtual: dict[str, str], packages: tuple[dict[str, Any], ...]
) -> None:
    assert notes(tmp_path, (CPU, *packages), tuple(specs.split("; ")), **virtual) == ()


@pytest.mark.parametrize("request_for_cpu", ["app-cpu", "app * cpu*"])
def test_a_request_for_the_cpu_is_not_called_the_cause(tmp_path: Path, request_for_cpu: str) -> None:
    named = package("app-cpu", "2", "0", "app 2 cpu*")
    cpu = {**CPU, "depends": ["python", "aaa * cpu*"]}
    aaa = (package("aaa", "1", "cpu_0"), package("aaa", "1", "cuda_0", "__cuda", number=200))
    assert notes(tmp_path, (cpu, CUDA, named, *aaa), (request_for_cpu, "aaa"), cuda="12.9") == ()


def test_of_several_packages_the_requested_one_is_explained(tmp_path: Path) -> None:
    base = package("aaa", "1", "cpu_0")
    base_cuda = package("aaa", "1", "cuda_0", "__cuda >=12.9", number=200)
    app, app_cuda = ({**entry, "depends": [*entry["depends"], "aaa"]} for entry in (CPU, CUDA))
    (note,) = notes(tmp_path, (app, app_cuda, base, base_cuda), ("app",), cuda="12.4")
    assert note.startswith(REASON)
