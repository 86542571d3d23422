"""The doctor on real machines' interfaces: a library of NVML's kind, a bare Python, a build that it stops."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.base.errors import IncompatibleVersions
from kiln.compat import machine
from tests.waiting import CEILING

ROOT = Path(__file__).parents[2]

# As NVIDIA's header declares them, for two GPUs; the second does not report its memory.
NVML = """
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory;
static int started = 0;
int nvmlInit_v2(void) { started = 1; return %(init)d; }
int nvmlShutdown(void) { started = 0; return 0; }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { strncpy(text, "535.104.05", length); return !started; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned at, void **device) { *device = (void *)(0x700000000000 + at); return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
  strncpy(name, "Tesla V100-SXM2-16GB", length);
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  *major = device == (void *)0x700000000000 ? %(first)d : 7;
  *minor = 0;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *found) {
  found->total = 17179869184ULL;
  return device == (void *)0x700000000000 ? 0 : 3;
}
"""


def nvml(folder: Path, *, init: int = 0, first: int = 7, name: str = "libstandin.so") -> str:
    """A library that answers as NVML does; ``first`` is the major capability of the first GPU."""
    library = folder / name
    source = NVML % {"init": init, "first": first}
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=source, text=True, check=True)
    return str(library)


@pytest.mark.needs("gcc")
def test_gpus_are_asked_of_nvml(tmp_path: Path) -> None:
    driver, cards = machine.driver_and_gpus_from_nvml(nvml(tmp_path))
    assert driver == "535.104.05"
    assert [(card.name, card.capability, card.memory) for card in cards] == [
        ("Tesla V100-SXM2-16GB", "7.0", 16 << 30),
        ("Tesla V100-SXM2-16GB", "7.0", 0),
    ]


@pytest.mark.needs("gcc")
def test_an_nvml_that_refuses_says_why(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nvmlInit_v2: Driver/library version mismatch \(18\)"):
        machine.driver_and_gpus_from_nvml(nvml(tmp_path, init=18))


@pytest.mark.needs("gcc")
@pytest.mark.parametrize(
    ("overrides", "arch"),
    [
        ({"CONDA_OVERRIDE_CUDA": "12.9"}, "7.0"),
        ({"CONDA_OVERRIDE_CUDA": "12.9", "CONDA_OVERRIDE_CUDA_ARCH": "9.0"}, "9.0"),
        ({"CONDA_OVERRIDE_CUDA": ""}, None),
    ],
)
def test_of_several_gpus_solves_and_the_doctor_are_given_the_lowest_capability(
    tmp_path: Path, overrides: dict[str, str], arch: str | None
) -> None:
    nvml(tmp_path, first=9, name="libnvidia-ml.so.1")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), **overrides}
    program = (
        "import json, os; from kiln.conda.solve import machine_virtual_packages as packages;"
        "print(json.dumps(packages(os.environ)))"
    )
    solve, doctor = (
        json.loads(
            subprocess.run(
                [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            ).stdout
        )
        for words in (["-c", program], ["-m", "kiln", "doctor", "--json"])
    )
    assert [card["capability"] for card in doctor["machine"]["cards"]] == ["9.0", "7.0"]
    assert doctor["machine"]["cuda_arch"] == arch
    assert solve.get("__cuda_arch") == (None if arch is None else [arch, "0"])


def test_the_doctor_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """A machine that is only examined has no environment: -S leaves site-packages out."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from kiln.__main__ import main; main(sys.argv[1:])"
    for words in (["--json"], ["--tf", "2.18", "--cuda", "12.5", "--gpu", "p3", "--json"], ["--error", "x", "--json"]):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program, "doctor", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=CEILING,
        )
        assert done.returncode in {0, IncompatibleVersions.exit_code}, done.stderr
        json.loads(done.stdout)


def test_a_config_that_cannot_work_is_refused_before_it_is_built(tmp_path: Path) -> None:
    feedstock = tmp_path / "feedstock"
    shutil.copytree(ROOT / "recipe", feedstock / "recipe", ignore=shutil.ignore_patterns("__pycache__"))
    name = "linux_64_cuda_compiler_version12.5python3.12.____cpython"
    config = (ROOT / ".ci_support" / f"{name}.yaml").read_text()
    (feedstock / ".ci_support").mkdir()
    (feedstock / ".ci_support" / f"{name}.yaml").write_text(config.replace("- '13'", "- '14'"))
    done = subprocess.run(
        [sys.executable, "-m", "kiln", "-C", feedstock, "build", name, "--container", "none", "--dry-run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=CEILING,
    )
    assert done.returncode == IncompatibleVersions.exit_code
    assert f"{name} cannot work: CUDA 12.5 refuses GCC 14: it must be below 14" in done.stderr
    assert "why: cuda_compiler.csv:15, spack-packages, build_systems/cuda.py" in done.stderr
    assert f"kiln -C {feedstock} doctor {name}; " in done.stderr
    assert "host gcc 13" in done.stderr
