"""The output of a machine's programs is parsed into facts, and the facts decide what runs on it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import UsageError
from kiln.compat import machine
from kiln.compat import verdict as compat_verdict
from kiln.compat.combination import Verdict
from kiln.compat.machine import GpuCard, MachineFacts
from kiln.conda import solve

if TYPE_CHECKING:
    from collections.abc import Mapping

MACHINES = sorted((Path(__file__).parents[2] / "fixtures" / "machines").glob("*.json"))


def facts_from(data: Mapping[str, Any]) -> MachineFacts:
    """Return the facts that ``to_json`` made data of."""
    cards = tuple(GpuCard(**card) for card in data["cards"])
    return MachineFacts(**{**data, "cards": cards, "notes": tuple(data["notes"])})


def facts(**changes: object) -> MachineFacts:
    """A machine with a V100 and a driver of CUDA 12.2."""
    known: dict[str, object] = {
        "system": "Debian",
        "kernel": "6.1",
        "glibc": "2.36",
        "avx": True,
        "driver": "535.104.05",
        "loaded": "535.104.05",
        "cuda": "12.2",
        "cards": [{"name": "Tesla V100-SXM2-16GB", "capability": "7.0", "memory": 16 << 30}],
        "gcc": "12.2.0",
        "clang": None,
        "nvcc": None,
        "bazel": None,
        "engine": None,
        "engine_gpus": "",
        "notes": [],
    }
    return facts_from({**known, **changes})


def test_the_table_of_nvidia_smi_is_parsed() -> None:
    text = "535.104.05, Tesla V100-SXM2-16GB, 7.0, 16384\n535.104.05, NVIDIA GH200, 9.0, [N/A]\n"
    assert machine.parse_nvidia_smi_output(text) == (
        "535.104.05",
        (
            GpuCard(name="Tesla V100-SXM2-16GB", capability="7.0", memory=16 << 30),
            GpuCard(name="NVIDIA GH200", capability="9.0", memory=0),
        ),
    )
    with pytest.raises(ValueError, match="nvidia-smi answers"):
        machine.parse_nvidia_smi_output("No devices were found\n")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  384.130  Wed Mar 21 03:37:26 PDT 2018\n", "384.130"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)\n", "580.95.05"),
        ("something else\n", None),
    ],
)
def test_the_drivers_part_in_the_kernel(tmp_path: Path, text: str, version: str | None) -> None:
    (tmp_path / "version").write_text(text)
    assert machine._loaded_kernel_module_version(tmp_path / "version") == version
    assert machine._loaded_kernel_module_version(tmp_path / "nothing") is None


def test_the_processors_flags(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("processor : 0\nflags\t\t: fpu sse4_2\n")
    (tmp_path / "new").write_text("processor : 0\nflags\t\t: fpu sse4_2 avx avx2\n")
    answers = [machine._has_avx(tmp_path / name) for name in ("old", "new", "nothing")]
    assert answers == [False, True, None]


def test_a_library_that_is_not_there_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="libnothing"):
        machine.driver_and_gpus_from_nvml("libnothing.so.1")
    with pytest.raises(OSError, match="the library has no nvmlInit_v2"):
        machine.driver_and_gpus_from_nvml("libc.so.6")


@pytest.mark.processes
def test_this_machine_is_looked_at() -> None:
    result = machine.probe_machine(os.environ)
    assert result.system.endswith(os.uname().machine)
    assert result.glibc is None or float(result.glibc) > 2
    assert (result.driver is None) is any("CUDA's driver library" in note for note in result.notes)


def test_capabilities_of_a_machine_with_a_v100() -> None:
    ranges = compat_verdict.cuda_ranges_by_verdict(compat_verdict.cuda_verdicts(facts()))
    assert ranges["works"] == "9.0 to 12.2"
    assert ranges["works with a cost"] == "12.3 to 12.9, 7.0 to 8.0"
    assert ranges["cannot work"].startswith("13.0 to 13.4")


def test_the_newest_tensorflow_on_it() -> None:
    answers = compat_verdict.newest_tensorflow_results(facts())
    assert answers["running"].combination.cuda == "12.5"
    assert answers["running"].verdict is Verdict.COSTS
    assert set(answers) == {"running", "building"}
    assert set(compat_verdict.newest_tensorflow_results(facts(gcc=None))) == {"running"}


def test_a_machine_without_gpu_runs_the_cpu_build() -> None:
    bare = facts(driver=None, loaded=None, cuda=None, cards=[])
    assert compat_verdict.cuda_verdicts(bare) == {}
    running = compat_verdict.newest_tensorflow_results(bare)["running"]
    assert (running.combination.cuda, running.verdict) == (None, Verdict.WORKS)


@pytest.mark.parametrize("file", MACHINES, ids=lambda file: file.stem)
def test_a_real_machine_is_judged_today_as_it_was(file: Path) -> None:
    told = json.loads(file.read_text())
    own = {name: value for name, value in told["machine"].items() if name not in {"cores", "memory", "disk_free"}}
    real = facts_from(own)
    cudas = {cuda: verdict.value for cuda, verdict in compat_verdict.cuda_verdicts(real).items()}
    assert {cuda: cudas.get(cuda) for cuda in told["cudas"]} == told["cudas"]  # later tables have more
    assert real.missing_gpu_finding() is None
    assert (
        compat_verdict.newest_tensorflow_results(real)["running"].verdict.value == told["answers"]["running"]["verdict"]
    )


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
