"""``kiln doctor`` on the command line: what it prints, and its exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import IncompatibleVersions, UnknownConfig, UsageError
from kiln.cli import main
from kiln.compat import machine
from kiln.compat.machine import GpuCard
from tests import builders

if TYPE_CHECKING:
    from kiln.compat.machine import MachineFacts

ROOT = Path(__file__).parents[3]
CELL = "linux_64_cuda_compiler_version12.9microarch_level2python3.12.____cpython"
CPU = "linux_64_cuda_compiler_versionNonemicroarch_level1python3.10.____cpython"
ARM, MAC = "linux_aarch64_python3.12.____cpython", "osx_arm64_python3.12.____cpython"


def test_what_works_is_told_with_its_row_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "--tf", "2.18", "--cuda", "12.5", "--gpu", "p3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("works: TensorFlow 2.18, CUDA 12.5, V100 of p3 (7.0)\n")
    assert "tensorflow.csv:5: tf 2.18.0" in out
    assert "tensorflow/docs, site/en/install/source.md" in out
    assert '    cuda_compiler_version:\n      - "12.5"' in out


def test_what_cannot_work_has_its_own_exit_code_and_names_what_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "--tf", "2.18", "--cuda", "13.0", "--cc", "7.0"]) == IncompatibleVersions.exit_code
    out = capsys.readouterr().out
    assert "  ✗ CUDA 13.0 compiles for 7.5 to 12.1; 7.0 is older than all of them" in out
    assert "nearest working combinations:\n  TensorFlow 2.18, CUDA 12.5, 7.0 (changed: cuda)" in out


@pytest.mark.parametrize("file", sorted((ROOT / ".ci_support").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_config_of_this_feedstock_is_known(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["-C", str(ROOT), "doctor", file.stem]) == 0
    verdict = "works with a cost" if "12.9" in file.stem else "works"
    assert capsys.readouterr().out.startswith(f"{verdict}: TensorFlow 2.21.0, ")


def test_a_config_is_checked_for_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["-C", str(ROOT), "doctor", CELL, "--gpu", "V100", "--driver", "575.57.08"]) == 0
    assert "the build has machine code for V100 (7.0)" in capsys.readouterr().out
    assert main.run(["-C", str(ROOT), "doctor", CELL, "--cc", "3.7"]) == IncompatibleVersions.exit_code
    assert "the build has neither machine code nor PTX for 3.7" in capsys.readouterr().out


OF_CONFIGS = [  # a config, a machine, the verdict, and what the answer says and does not say
    (CPU, "--gpu T4", "works with a cost", "built without CUDA: it runs on the CPU and does not use T4", "nvcc"),
    (CPU, "--driver 390.46", "works", "", "driver 5"),
    (CPU, "", "works", "", "CUDA"),
    (CPU, "--system windows", "cannot work", "does not install on Windows", "upstream's wheel"),
    (CPU, "--system wsl2", "works", "", "upstream's wheel"),
    (MAC, "--gpu T4", "works with a cost", "built without CUDA", "upstream's wheel"),
    (MAC, "--arch x86_64", "cannot work", "a package for osx-arm64 does not install on x86_64", "upstream's wheel"),
    (CELL, "--gpu GH200", "cannot work", "on which a package for linux-64 does not install", "upstream's wheel"),
    (CELL, "--arch aarch64", "cannot work", "a package for linux-64 does not install on aarch64", "upstream's wheel"),
    (CELL.replace("12.9", "12.5"), '--gpu "RTX 5090"', "unknown", "no report has this build", "works with a cost: T"),
    (ARM, "--arch x86_64", "cannot work", "a package for linux-aarch64 does not install on x86_64", "upstream's wheel"),
    (ARM, "--gpu GH200", "works with a cost", "does not use GH200 (9.0)", "upstream's wheel"),
]


@pytest.mark.parametrize(("config", "machine", "verdict", "says", "never"), OF_CONFIGS)
def test_the_package_of_a_config_and_not_upstreams_wheel_is_checked(
    config: str, machine: str, verdict: str, says: str, never: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main.run(["-C", str(ROOT), "doctor", config, *shlex.split(machine)])
    out = capsys.readouterr().out
    assert (out.partition(": ")[0], says in out, never in out) == (verdict, True, False)
    assert code == (IncompatibleVersions.exit_code if verdict == "cannot work" else 0)


RECIPE_V1 = """
recipe:
  name: whole
  version: 2.21.0
outputs:
  - package:
      name: %(name)s
    requirements:
      build:
        - ${{ compiler('cxx') }}
      host:
        - python
"""
CUDA_V1 = """cuda_compiler_version:
- '12.5'
cxx_compiler:
- gxx
cxx_compiler_version:
- '14'
"""
COMMON_V1 = """python:
- 3.13.* *_cp313
target_platform:
- linux-64
"""


def feedstock_v1(folder: Path, name: str, variant: str) -> list[str]:
    """Return the words that ask the doctor about the one config of a new feedstock with recipe.yaml."""
    builders.feedstock(folder, RECIPE_V1 % {"name": name}, v1=True, configs={"linux_64_": variant + COMMON_V1})
    return ["-C", str(folder), "doctor", "linux_64_", "--json"]


def test_a_config_of_recipe_yaml_with_tensorflow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = feedstock_v1(tmp_path, "tensorflow-base", CUDA_V1)
    assert main.run(words) == IncompatibleVersions.exit_code
    answer = json.loads(capsys.readouterr().out)
    asked = {"tf": "2.21.0", "cuda": "12.5", "python": "3.13", "host": "gcc 14"}
    assert answer["combination"] == {**asked, "platform": "linux-64", "has_cuda": True}
    assert "CUDA 12.5 refuses GCC 14: it must be below 14" in [item["reason"] for item in answer["findings"]]


def test_a_package_without_a_list_of_targets_is_not_judged_by_that_of_the_wheel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = feedstock_v1(tmp_path, "tensorflow-base", CUDA_V1.replace("'14'", "'13'"))
    assert main.run([*words, "--gpu", "RTX 5090"]) == 0
    answer = json.loads(capsys.readouterr().out)
    reasons = [item["reason"] for item in answer["findings"]]
    assert "the config does not say which GPUs its package is compiled for" in reasons
    assert [reason for reason in reasons if "upstream's" in reason] == []


def test_the_variant_file_of_recipe_yaml_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = feedstock_v1(tmp_path, "solver", CUDA_V1.replace("12.5", "12.9"))[:-1]
    main.run(words)
    assert "\nin recipe/conda_build_config.yaml:\n" in capsys.readouterr().out
    (tmp_path / "recipe" / "variants.yaml").write_text("zlib: ['1']\n")
    main.run(words)
    assert "\nin recipe/variants.yaml:\n" in capsys.readouterr().out


def test_a_config_of_recipe_yaml_without_cuda(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(feedstock_v1(tmp_path, "uv", "")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["combination"]) == ("unknown", {})
    (finding,) = answer["findings"]
    assert finding["reason"].startswith("linux_64_ (uv 2.21.0) is built without CUDA, and is neither TensorFlow")


def test_a_config_that_is_not_there() -> None:
    assert main.run(["-C", str(ROOT), "doctor", "linux_64_nothing"]) == UnknownConfig.exit_code


@pytest.mark.parametrize(
    "words",
    [
        ["--tf", "two"],
        ["--tf", ""],
        ["--gpu", "Voodoo"],
        [CELL, "--tf", "2.18"],
        ["--log", "/no/such.log"],
        ["--log", "x", "--error", "y"],
        ["--error", "y", "--cuda", "12.5"],
    ],
)
def test_what_cannot_be_asked(words: list[str]) -> None:
    assert main.run(["-C", str(ROOT), "doctor", *words]) == UsageError.exit_code


def test_an_error_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "--error", "nvcc fatal   : Unsupported gpu architecture 'compute_120'"]) == 0
    out = capsys.readouterr().out
    assert "cause: This nvcc does not compile for compute_120. CUDA that does: 12.8 to 13.4." in out
    assert "seen: https://" in out


def test_a_log_is_made_harmless_before_it_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"fine\n\x1b[31mIllegal instruction\x1b[0m \x07(core dumped)\n")
    assert main.run(["doctor", "--log", str(log)]) == 0
    assert "illegal instruction: line 2\n    | Illegal instruction (core dumped)\n" in capsys.readouterr().out
    assert main.run(["doctor", "--log", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["line"] == 2


def test_a_log_without_a_known_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "--error", "it does not work"]) == 0
    assert "no known failure found" in capsys.readouterr().out


PAGE = (ROOT / "docs" / "how-to" / "doctor.md").read_text()
SHOWN = re.findall(r"```console\n\$ kiln (doctor [^\n|]*?)(?: \| head -(\d+))?\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("line", "most", "shown"), SHOWN, ids=[line for line, _, _ in SHOWN])
def test_the_page_shows_what_is_answered(line: str, most: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    main.run(shlex.split(line))
    lines = capsys.readouterr().out.splitlines()
    assert lines[: int(most) if most else None] == shown.splitlines()


REFERENCE = (ROOT / "docs" / "reference" / "compatibility.md").read_text()


def keys(data: object) -> set[str]:
    """Every key of an answer but for the columns of tables, which are documented as such."""
    if isinstance(data, dict):
        own = {key for key in data if not key[0].isdigit()}
        return own.union(*(keys(value) for key, value in data.items() if key != "row"))
    return set().union(*map(keys, data)) if isinstance(data, list) else set()


@pytest.fixture(scope="module")
def facts() -> MachineFacts:
    return machine.probe_machine(os.environ)


@pytest.fixture
def probed_once(facts: MachineFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer with this machine's facts: each probe starts nine programs, of which container engines are slow."""
    monkeypatch.setattr(machine, "probe_machine", lambda _: facts)


@pytest.mark.processes
@pytest.mark.usefixtures("probed_once")
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--tf", "2.18", "--cuda", "13.0", "--gpu", "p3", "--built-for", "sm_60"],
        ["--serving", "1.12", "--cuda", "9.0", "--cudnn", "7", "--compiler", "gcc-7", "--driver", "384.81"],
        ["--error", "Illegal instruction"],
    ],
)
def test_every_key_of_the_json_answer_stands_in_the_reference(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main.run(["-C", str(tmp_path), "doctor", "--json", *words])
    assert {key for key in keys(json.loads(capsys.readouterr().out)) if f"`{key}`" not in REFERENCE} == set()


@pytest.mark.processes
@pytest.mark.usefixtures("probed_once")
def test_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main.run(["-C", str(tmp_path), "doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"machine", "cudas", "answers"}
    assert told["machine"]["memory"] > 0
    main.run(["-C", str(tmp_path), "doctor"])
    assert "NVIDIA driver " in capsys.readouterr().out


@pytest.mark.processes
@pytest.mark.usefixtures("probed_once")
def test_a_combination_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    main.run(["doctor", "--tf", "2.21", "--glibc", "2.17", "--here", "--json"])
    asked = json.loads(capsys.readouterr().out)["combination"]
    assert (asked["tf"], asked["glibc"]) == ("2.21", "2.17")


BARE: dict[str, Any] = {"driver": None, "loaded": None, "cuda": None, "cards": (), "notes": ("NVML: not there",)}
V100 = GpuCard(name="Tesla V100", capability="7.0", memory=16 << 30)
NO_DRIVER, NO_GPU, NO_LIBRARIES = "no NVIDIA driver was found", "and no GPU: see", "the libraries of NVIDIA's driver"
OF_MACHINES: list[tuple[dict[str, Any], str, str, str]] = [  # changes of a bare machine, a question, the answer
    ({}, "--cuda 12.5", "cannot work", NO_DRIVER),
    ({}, "--gpu V100", "cannot work", NO_DRIVER),
    ({}, CELL, "cannot work", NO_DRIVER),
    ({}, CPU, "works", ""),
    ({}, "", "works", ""),
    ({}, "--cuda 12.5 --driver 580.65.06", "works", ""),
    ({}, "--cuda 12.5 --system wsl2", "works", ""),
    ({"loaded": "580.65.06"}, "--cuda 12.5", "unknown", NO_LIBRARIES),
    ({"kernel": "6.6-microsoft-standard-WSL2"}, "--cuda 12.5", "unknown", NO_LIBRARIES),
    ({"kernel": "5.15.148-tegra"}, "--cuda 12.5", "unknown", NO_LIBRARIES),
    ({"kernel": "5.15.148-tegra", "cuda": "12.6"}, "--cuda 12.5", "works", ""),
    ({"driver": "580.65.06", "cuda": "13.0"}, "--cuda 12.5", "unknown", NO_GPU),
    ({"driver": "580.65.06", "loaded": "580.65.06", "cuda": "13.0", "notes": ()}, "--cuda 12.5", "unknown", NO_GPU),
    ({"driver": "580.65.06", "loaded": "580.65.06", "cuda": "13.0"}, "--cuda 12.5", "works", ""),
    ({"driver": "580.65.06", "loaded": "580.65.06", "cuda": "13.0", "cards": (V100,)}, "--cuda 12.5", "works", ""),
]


@pytest.mark.processes
@pytest.mark.parametrize(("changes", "question", "verdict", "says"), OF_MACHINES)
def test_what_needs_a_gpu_does_not_work_on_a_machine_without(
    changes: dict[str, Any],
    question: str,
    verdict: str,
    says: str,
    facts: MachineFacts,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where a part of the driver is found, the other may be hidden: in a container, WSL2, a Jetson."""
    linux = {"system": "Debian, x86_64", "kernel": "6.1", "glibc": "2.36", "avx": True}
    known = dataclasses.replace(facts, **{**linux, **BARE, **changes})
    monkeypatch.setattr(machine, "probe_machine", lambda _: known)
    words = [question] if question in {CELL, CPU} else ["--tf", "2.21", *question.split()]
    code = main.run(["-C", str(ROOT), "doctor", "--here", *words])
    out = capsys.readouterr().out
    assert out.partition(":")[0] == verdict, out
    assert says in out
    assert bool(says) == any(each in out for each in (NO_DRIVER, NO_GPU, NO_LIBRARIES))
    assert code == (IncompatibleVersions.exit_code if verdict == "cannot work" else 0)
    assert "nearest working" not in out
