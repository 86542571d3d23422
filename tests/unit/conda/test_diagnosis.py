"""The explanation when no packages satisfy the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import SolveFailed
from kiln.conda.diagnosis import (
    TargetMachine,
    cuda_versions_to_try,
    explain_conflicting_specs,
    explain_failed_solve,
    explain_missing_driver,
    is_newer_cuda,
    newest_package_versions,
    smallest_conflicting_specs,
)
from tests.unit.conda.local_solver import local_solver, package

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def test_the_smallest_set_of_conflicting_specs_is_found() -> None:
    def solves(specs: Sequence[str]) -> bool:
        return not {"b", "d"} <= set(specs)

    assert smallest_conflicting_specs(("a", "b", "c", "d"), solves) == ("b", "d")


def test_a_spec_that_alone_cannot_be_had_stands_alone() -> None:
    assert smallest_conflicting_specs(("a", "b"), lambda specs: "b" not in specs) == ("b",)
    assert smallest_conflicting_specs(("a",), lambda _: False) == ("a",)


def test_drivers_are_tried_for_each_cuda_and_for_those_that_the_solver_names() -> None:
    assert cuda_versions_to_try("x would constrain __cuda >=12.5, y __cuda >=13") == ("11.0", "12.0", "12.5", "13.0")


def test_a_cuda_is_newer_by_its_numbers() -> None:
    assert is_newer_cuda("12.10", "12.9")
    assert not is_newer_cuda("12.0", "12.0")
    assert is_newer_cuda("11.0", None)


def test_an_old_driver_is_reported_with_the_required_version() -> None:
    machine = TargetMachine(virtual_packages={"__cuda": ("11.4", "0")}, driver=lambda: "470.82.01")
    what, why, hint = explain_missing_driver(["tensorflow-gpu"], "12.5", machine, instead=["tensorflow-cpu"])
    assert what.startswith("tensorflow-gpu cannot run here: this needs an NVIDIA driver 555.42.02 or newer, for CUDA")
    assert why == "this machine's driver, 470.82.01, runs CUDA up to 11.4"
    assert hint.startswith(
        "request tensorflow-cpu, which needs no GPU; install NVIDIA's driver 555.42.02 or newer; or,"
    )


def test_a_missing_driver_is_reported() -> None:
    _, why, hint = explain_missing_driver(["tensorflow-gpu"], "12.0", TargetMachine(virtual_packages={}), instead=[])
    assert why == "no working NVIDIA driver found on this machine"
    assert hint.startswith("install NVIDIA's driver 525.60.13 or newer")


def test_the_two_variants_are_both_named() -> None:
    what, _, hint = explain_conflicting_specs(("tensorflow-gpu 2.21.*", "tensorflow-cpu"), ("conda-forge",))
    assert what == "tensorflow-gpu 2.21.* and tensorflow-cpu exclude each other, on any machine"
    assert hint == "request one of them; tensorflow alone selects the build for the machine"


def test_a_version_that_does_not_exist_is_answered_with_those_that_do() -> None:
    answers = {"app": "3", "app <3": "2.1", "app <2.1": "1"}
    versions = newest_package_versions("app", lambda spec: answers.get(spec, ""))
    assert versions == ("3", "2.1", "1")
    what, why, hint = explain_conflicting_specs(("app 7.*",), ("conda-forge",), versions)
    assert what == "app 7.* cannot be installed from conda-forge on any machine"
    assert why == "the newest versions there of app are 3, 2.1, 1"
    assert hint.startswith("request another version")


def test_the_versions_of_a_package_are_limited() -> None:
    endless = iter(range(100, 0, -1))
    assert newest_package_versions("app", lambda _: str(next(endless))) == ("100", "99", "98", "97", "96")
    assert newest_package_versions("app", lambda _: "1") == ("1",)
    assert newest_package_versions("nothing", lambda _: "") == ()
    assert explain_conflicting_specs(("nothing",), ("c",))[2].startswith("check its name")


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


def test_a_package_that_needs_a_newer_c_library_is_named(tmp_path: Path) -> None:
    packages = (package("app", "2", "0", "__glibc >=2.34"), package("other", "1", "0"))
    error = explanation(tmp_path, packages, ("other", "app"), glibc="2.28")
    assert error.what == "app needs a newer C library than this machine's"
    assert error.why.splitlines()[0] == "glibc here is 2.28"


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


def test_a_version_that_does_not_exist_is_reported_with_the_newest_ones_of_the_channel(tmp_path: Path) -> None:
    packages = [package("app", version, "0", "__cuda >=12") for version in ("1.9", "1.10", "2.0")]
    error = explanation(tmp_path, packages, ("app 3.*",))
    assert error.what == "app 3.* cannot be installed from channel on any machine"
    assert error.why.startswith("the newest versions there of app are 2.0, 1.10, 1.9\nthe solver says\n")
    assert "app 3.*" in error.why


def test_a_driver_that_is_too_new_is_not_called_too_old(tmp_path: Path) -> None:
    packages = (package("app", "1", "0", "__cuda <13"),)
    assert "driver" not in explanation(tmp_path, packages, ("app",), cuda="13.0").what


def test_the_solvers_own_message_is_shown_up_to_the_requested_number_of_lines(tmp_path: Path) -> None:
    packages = [package("a", str(number), "0", f"missing{number}") for number in range(4)]
    whole = explanation(tmp_path, packages, ("a",)).why.splitlines()
    short = explanation(tmp_path, packages, ("a",), most=2).why.splitlines()
    assert short[:-1] == whole[:3]
    assert short[-1].endswith(f"... and {len(whole) - 3} lines more, with --verbose")
