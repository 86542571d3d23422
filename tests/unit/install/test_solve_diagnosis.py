"""The explanation when no packages satisfy the request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.install.solve_diagnosis import (
    TargetMachine,
    cuda_versions_to_try,
    explain_conflicting_specs,
    explain_missing_driver,
    is_newer_cuda,
    newest_package_versions,
    smallest_conflicting_specs,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


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
