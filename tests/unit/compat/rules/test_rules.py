"""Combinations and what is said of them: the verdict, the rule that decides, the row that it rests on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.compat import tables
from kiln.compat.combination import VERSIONS, Verdict, combination_from_options
from kiln.compat.rules import findings
from kiln.compat.verdict import judge_combination

if TYPE_CHECKING:
    from kiln.compat.combination import Finding

WORKS, COSTS, UNKNOWN, CANNOT = "works", "works with a cost", "unknown", "cannot work"


def said(rule: str, **asked: str) -> Finding:
    (result,) = [finding for finding in findings(combination_from_options(asked)) if finding.rule == rule]
    return result


@pytest.mark.parametrize(
    ("rule", "asked", "verdict", "reason", "table"),
    [
        ("TensorFlow and CUDA", "tf 2.18; cuda 12.5.1", WORKS, "tested with CUDA 12.5", "tensorflow"),
        ("TensorFlow and CUDA", "tf 2.18; cuda 12.9", COSTS, "same major version, and untested", "tensorflow"),
        ("TensorFlow and CUDA", "tf 2.6.0; cuda 10.2", COSTS, "conda-forge built it", "tensorflow"),
        ("TensorFlow and CUDA", "tf 2.18; cuda 11.8", UNKNOWN, "another major version", "tensorflow"),
        ("TensorFlow and CUDA", "tf 3.0; cuda 12.5", UNKNOWN, "no table has TensorFlow 3.0", None),
        ("TensorFlow and cuDNN", "tf 2.18; cudnn 9.3", WORKS, "tested with cuDNN 9.3", "tensorflow"),
        ("TensorFlow and cuDNN", "tf 2.18; cudnn 9.10.2", WORKS, "newer minor version", "tensorflow"),
        ("TensorFlow and cuDNN", "tf 2.18; cudnn 9.0", COSTS, "refuses the older 9.0", "tensorflow"),
        ("TensorFlow and cuDNN", "tf 2.18; cudnn 8.9", UNKNOWN, "another major version", "tensorflow"),
        ("TensorFlow and Python", "tf 2.18; python 3.9.7", WORKS, "for Python 3.9-3.12", "tensorflow"),
        ("TensorFlow and Python", "tf 2.18; python 3.8", CANNOT, "not for 3.8", "tensorflow"),
        ("TensorFlow and Python", "tf 2.19.1; python 3.13", UNKNOWN, "which is newer, and no test", "tensorflow"),
        ("TensorFlow and Python", "tf 2.18; python 3.14", UNKNOWN, "there is no wheel for 3.14", "tensorflow"),
        ("TensorFlow and Bazel", "tf 2.18; bazel 6.5.0", WORKS, "built with Bazel 6.5.0", "tensorflow"),
        ("TensorFlow and Bazel", "tf 2.18; bazel 6.6.0", COSTS, "6.6.0 is untested", "tensorflow"),
        ("TensorFlow and Bazel", "tf 2.18; bazel 7.4.1", UNKNOWN, "is not documented", "tensorflow"),
        ("TensorFlow and Bazel", "tf 1.7.0; bazel 0.9.0; cuda 9", WORKS, "Bazel 0.9.0", "tensorflow"),
        ("TensorFlow and compiler", "tf 2.18; compiler clang-17", WORKS, "clang 17.0.6", "tensorflow"),
        ("TensorFlow and compiler", "tf 2.18; compiler gcc-13", COSTS, "gcc 13 is untested", "tensorflow"),
        ("Serving and Bazel", "serving 1.12; bazel 0.15.0", WORKS, "Bazel 0.15.0", "serving"),
        ("Serving and CUDA", "serving 1.12; cuda 9.0", WORKS, "built with CUDA 9.0", "serving"),
        ("Serving and CUDA", "serving 2.20; cuda 12.9", COSTS, "untested", "serving"),
        ("Serving and CUDA", "serving 1.12; cuda 10.0", UNKNOWN, "is not documented", "serving"),
        ("Serving and cuDNN", "serving 1.12; cudnn 7", WORKS, "cuDNN 7.2.1.38", "serving"),
        ("Serving and TensorFlow", "serving 2.20", WORKS, "that TensorFlow is tested with", "serving"),
        (
            "Serving and TensorFlow",
            "serving 2.18",
            COSTS,
            "another CUDA 12.2.0 (TensorFlow: 12.5) and cuDNN",
            "serving",
        ),
        ("Serving and TensorFlow", "serving 2.18; tf 2.17", CANNOT, "of its own minor version", "serving"),
        ("CUDA and GPU", "cuda 12.9; gpu p3", WORKS, "V100 of p3 (7.0) among them", "cuda_compiler"),
        ("CUDA and GPU", "cuda 13.0; gpu V100", CANNOT, "older than all of them", "cuda_compiler"),
        ("CUDA and GPU", "cuda 8.0; gpu Tesla V100-SXM2-16GB", COSTS, "PTX of an older one", "cuda_compiler"),
        ("CUDA and GPU", "cuda 12.5; gpu p6-b200", COSTS, "minutes to half an hour", "cuda_compiler"),
        ("CUDA and GPU", "cuda 11.0; gpu 8.6", WORKS, "machine code of an older GPU", "cuda_compiler"),
        ("CUDA and GPU", "cuda 14.0; gpu 8.6", UNKNOWN, "no table has the GPUs", None),
        ("what is built and GPU", "tf 2.18; gpu g5.xlarge", WORKS, "machine code for A10G of g5", "upstream"),
        ("what is built and GPU", "tf 2.18; gpu p2", CANNOT, "neither machine code nor PTX", "upstream"),
        ("what is built and GPU", "tf 2.18; gpu 10.0", COSTS, "PTX is compiled at the first start", "upstream"),
        ("what is built and GPU", "serving 1.7; gpu p3", COSTS, "PTX is compiled", "serving"),
        ("what is built and GPU", "built_for sm_80,sm_90; gpu 10.0", CANNOT, "neither machine code", None),
        ("what is built and GPU", "built_for sm_86; gpu 8.0", CANNOT, "neither machine code", None),
        ("CUDA and what is built", "cuda 12.5; built_for sm_70,compute_90", WORKS, "all that is", "cuda_compiler"),
        ("CUDA and what is built", "cuda 12.5; built_for sm_35,sm_90,sm_120", CANNOT, "sm_35, sm_120", "cuda_compiler"),
        ("CUDA and host compiler", "cuda 12.5; compiler gcc-13.2", WORKS, "below 14", "cuda_compiler"),
        ("CUDA and host compiler", "cuda 12.5; host gcc 14", CANNOT, "refuses GCC 14", "cuda_compiler"),
        ("CUDA and driver", "cuda 12.5; driver 555.42.06", WORKS, "came with driver 555.42.02", "cuda_driver"),
        ("CUDA and driver", "cuda 12.5; driver 535", COSTS, "minor-version compatibility", "cuda_driver"),
        ("CUDA and driver", "cuda 12.5; driver 520.61.05", CANNOT, "needs driver 525", "cuda_minor"),
        ("CUDA and driver", "cuda 10.2; driver 418.39", CANNOT, "needs driver 440.33", "cuda_driver"),
        ("cuDNN and CUDA", "cudnn 9.3; cuda 12.5", WORKS, "tested together", "tensorflow"),
        ("cuDNN and CUDA", "cudnn 7.6.5; cuda 9.1", CANNOT, "does not support", "cudnn"),
        ("cuDNN and CUDA", "cudnn 9.8; cuda 12.9", WORKS, "are made for each other", "cudnn"),
        ("cuDNN and CUDA", "cudnn 9.8; cuda 13.0", CANNOT, "does not support cuDNN 9.8 and CUDA 13.0", "cudnn"),
        ("cuDNN and GPU", "cudnn 9.17; cuda 12.9; gpu V100", CANNOT, "has no kernels for V100", "cudnn"),
        ("cuDNN and driver", "cudnn 9.17; cuda 13.0; driver 575.57.08", CANNOT, "580.65.06", "cudnn"),
        ("known failure", "tf 2.18; gpu RTX 5070 Ti", CANNOT, "CUDA_ERROR_INVALID_PTX", "known_failure"),
        ("known failure", "tf 2.21; cuda 12.5; gpu RTX 5090", CANNOT, "it needs CUDA 12.8 or newer", "known_failure"),
        ("known failure", "tf 2.14; gpu 12.0", UNKNOWN, "those of 2.16 to 2.18 are known to fail", "known_failure"),
        ("known failure", "tf 1.15; gpu A100", CANNOT, "CUBLAS_STATUS_EXECUTION_FAILED", "known_failure"),
        ("known failure", "tf 1.15; gpu H100", UNKNOWN, "are known to fail on 8.0 to 8.6", "known_failure"),
        ("known failure", "tf 1.12; gpu H100", UNKNOWN, "nothing is known about upstream's wheel", "known_failure"),
        ("CUDA and host compiler", "cuda 13.4; host gcc-16", WORKS, "accepts a GCC below 17", "cuda_compiler"),
        ("CUDA and host compiler", "cuda 13.4; host clang-23", CANNOT, "it must be below 23", "cuda_compiler"),
        ("cuDNN and GPU", "cudnn 9.5.1; cuda 12.6; gpu B200", UNKNOWN, "does not list B200", "cudnn"),
        ("driver and GPU", "driver 590.44.01; gpu p3", CANNOT, "after 580 do not serve V100", "driver_gpu"),
        ("driver and GPU", "driver 580.159.04; gpu p3", WORKS, "not older than", "cuda_compiler"),
        ("cuDNN and GPU", "cudnn 9.10.2; cuda 12.9; gpu B200", WORKS, "has kernels for B200", "cudnn"),
        ("cuDNN and GPU", "cudnn 8.5.0; cuda 11.7; gpu 3.0", CANNOT, "no kernels for 3.0", "cudnn"),
        ("driver and GPU", "driver 535; gpu B200", UNKNOWN, "whether 535 knows the GPU", "cuda_compiler"),
        ("driver and GPU", "driver 535; gpu H100", WORKS, "not older than that of the first CUDA", "cuda_compiler"),
        ("driver and PTX", "tf 2.21; cuda 12.5; driver 535; gpu B200", CANNOT, "compile PTX", "cuda_driver"),
        ("wheel and glibc", "tf 2.21; glibc 2.27", WORKS, "glibc 2.27", "wheel"),
        ("wheel and glibc", "tf 2.21; glibc 2.17", CANNOT, "2.17 is older", "wheel"),
    ],
)
def test_a_rule(rule: str, asked: str, verdict: str, reason: str, table: str | None) -> None:
    result = said(rule, **dict(part.split(" ", 1) for part in asked.split("; ")))
    assert (result.verdict.value, reason in result.reason) == (verdict, True), result.reason
    assert [row.table for row in result.rows[:1]] == ([table] if table else [])


@pytest.mark.parametrize("row", tables.table_rows("tensorflow"), ids=lambda row: row["tf"])
def test_every_release_works_with_its_tested_versions(row: tables.Row) -> None:
    pythons: list[str | None] = [*row["python"].replace("-", " ").split()] or [None]
    for python in pythons:
        asked = {name: row[name] or None for name in ("tf", "cuda", "cudnn", "bazel", "compiler")}
        answer = judge_combination(combination_from_options({**asked, "python": python}), suggest=False)
        assert answer.verdict is Verdict.WORKS, [f.reason for f in answer.findings if f.verdict is not Verdict.WORKS]


@pytest.mark.parametrize("row", tables.table_rows("serving"), ids=lambda row: row["last"])
def test_no_release_of_serving_is_refused_with_its_own_versions(row: tables.Row) -> None:
    asked = {"serving": row["last"], **{name: row[name] for name in ("cuda", "cudnn", "bazel")}}
    assert judge_combination(combination_from_options(asked), suggest=False).verdict in {Verdict.WORKS, Verdict.COSTS}


def test_the_worst_finding_decides() -> None:
    assert (
        judge_combination(combination_from_options({"tf": "2.18", "cuda": "13.0", "gpu": "p3"})).verdict
        is Verdict.CANNOT
    )
    assert judge_combination(combination_from_options({"tf": "2.18", "cuda": "13.0"})).verdict is Verdict.UNKNOWN
    assert judge_combination(combination_from_options({"tf": "2.18", "cuda": "12.6"})).verdict is Verdict.COSTS


ALONE = {
    "cuda": ("12.5", WORKS, "compiles for 5.0 to 9.0, and accepts a GCC below 14"),
    "gpu": ("p3", WORKS, "CUDA 9.0 to 12.9 compile for V100 of p3 (7.0)"),
    "driver": ("550", WORKS, "driver 550 runs CUDA 7.0 to 12.4"),
    "host": ("gcc-13", WORKS, "gcc 13 is accepted by nvcc of CUDA 12.4 to 13.4"),
    "built_for": ("sm_70", WORKS, "sm_70 is compiled by CUDA 9.0 to 12.9"),
    "python": ("3.12", WORKS, "2.21.0 is the newest that accepts it, 2.16.1 the oldest"),
    "bazel": ("6.1.0", WORKS, "as upstream tests them, 2.15.0 is the newest that accepts it, 2.14.0 the oldest"),
    "cudnn": ("8.7", WORKS, "2.14.0 is the newest that accepts it"),
    "glibc": ("2.17", WORKS, "2.20.0 is the newest that accepts it"),
    "compiler": ("gcc-13", COSTS, "with a cost, 2.21.0 is the newest that accepts it"),
    "serving": ("1.99", UNKNOWN, "no table has TensorFlow 1.99, which Serving 1.99 would contain"),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_single_part_yields_the_facts_of_the_tables(name: str) -> None:
    value, verdict, reason = ALONE[name]
    answer = judge_combination(combination_from_options({name: value}), suggest=False)
    assert answer.verdict.value == verdict
    assert any(reason in finding.reason for finding in answer.findings), [item.reason for item in answer.findings]


def test_a_cuda_that_there_is_not_has_a_near_one() -> None:
    answer = judge_combination(combination_from_options({"cuda": "12.7"}))
    assert [(item.verdict, item.reason) for item in answer.findings] == [(Verdict.UNKNOWN, "no table has CUDA 12.7")]
    assert answer.nearest[0].combination.cuda == "12.5"


def test_parts_that_only_a_release_connects_are_unknown_without_one() -> None:
    answer = judge_combination(combination_from_options({"cuda": "12.5", "python": "3.6", "gpu": "p3"}))
    assert (answer.verdict, answer.nearest[0].combination.python) == (Verdict.UNKNOWN, "3.6")
    assert (
        judge_combination(combination_from_options({"cuda": "12.5", "python": "3.9", "gpu": "p3"})).verdict
        is Verdict.WORKS
    )


def test_a_gpu_that_no_table_knows_stays_unknown() -> None:
    assert {
        item.verdict for item in judge_combination(combination_from_options({"tf": "2.20", "gpu": "99.9"})).findings
    } == {Verdict.UNKNOWN}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("p6", "did you mean 'p6-b200' or 'p6-b300'?"),
        ("rtx 3099", "did you mean 'RTX 3090'"),
        ("A4000", "did you mean 'RTX A4000'?"),
        ("MI300X", "only NVIDIA's GPUs have one"),
    ],
)
def test_an_unknown_gpu_is_not_taken_for_one_of_another_maker(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        combination_from_options({"gpu": name})
    assert hint in caught.value.hint


def test_a_machine_that_is_no_longer_sold_is_named_and_changes_no_verdict() -> None:
    answer = judge_combination(combination_from_options({"tf": "2.18", "gpu": "p3"}))
    assert answer.verdict is Verdict.WORKS
    assert "AWS does not sell p3 any more" in [finding.reason for finding in answer.findings]


def test_a_gpu_on_which_every_wheel_fails_is_served_by_a_build_with_another_cuda() -> None:
    (release,) = [
        item
        for item in judge_combination(combination_from_options({"gpu": "RTX 5090"})).findings
        if item.rule == "releases"
    ]
    assert release.reason.startswith("TensorFlow 2.21.0 accepts it when it is built with CUDA 12.9")


def test_a_single_release_yields_its_tested_versions() -> None:
    reason = "TensorFlow 2.18 is tested with python 3.9-3.12, compiler clang 17.0.6, bazel 6.5.0, cudnn 9.3, cuda 12.5"
    assert said("TensorFlow", tf="2.18").reason == reason
    assert said("TensorFlow", tf="3.1").verdict is Verdict.UNKNOWN


def test_a_release_without_cuda_is_judged_with_its_own() -> None:
    assert said("CUDA and GPU", tf="2.17", gpu="K80").verdict is Verdict.CANNOT
    assert said("CUDA and driver", tf="2.17", driver="450.80.02").verdict is Verdict.CANNOT
    assert said("CUDA and GPU", serving="1.12", gpu="p3").verdict is Verdict.WORKS


def test_a_driver_that_was_updated_without_a_reboot() -> None:
    asked = combination_from_options({"driver": "470.57.02"}).with_versions(loaded="460.91.3")
    (finding,) = findings(asked)
    assert finding.verdict is Verdict.CANNOT
    assert "470.57.02, and the kernel has 460.91.3 loaded" in finding.reason


def test_a_processor_without_avx_runs_no_wheel() -> None:
    asked = combination_from_options({"tf": "2.18"})
    assert Verdict.CANNOT in [f.verdict for f in findings(dataclasses.replace(asked, avx=False))]
    assert Verdict.CANNOT not in [f.verdict for f in findings(dataclasses.replace(asked, avx=True))]


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("compute_120", "12.0"),
        ("p6-b200.48xlarge", "10.0"),
        ("NVIDIA A100-SXM4-40GB", "8.0"),
        ("NVIDIA GeForce RTX 5080", "12.0"),
        ("RTX5090", "12.0"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "12.0"),
    ],
)
def test_a_gpu_by_any_name(name: str, capability: str) -> None:
    assert combination_from_options({"gpu": name}).gpus[0].capability == capability


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"gpu": "Voodoo 2"}, "no table has a GPU 'Voodoo 2'"),
        ({"cuda": "twelve"}, "--cuda 'twelve' is not a version"),
        ({"compiler": "icc"}, "'icc' is not a compiler"),
        ({"built_for": "sm_x"}, "'sm_x' is not a compute capability"),
        ({"built_for": ""}, "'' is not a compute capability"),
        ({"tf": ""}, "--tf '' is not a version"),
        ({"gpu": "p3,"}, "no table has a GPU ''"),
        ({"host": ""}, "'' is not a compiler"),
    ],
)
def test_unknown_values_are_refused(asked: dict[str, str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        combination_from_options(asked)


@pytest.mark.parametrize("name", VERSIONS)
def test_the_hint_of_an_invalid_version_is_a_valid_version_of_the_same_part(name: str) -> None:
    with pytest.raises(UsageError) as refusal:
        combination_from_options({name: "banana"})
    option, value = refusal.value.hint.partition(",")[0].split(" ")
    assert option == f"--{name}"
    assert dict(combination_from_options({name: value}).specified_versions()) == {name: value}
    if name in {"tf", "serving"}:  # an example that the doctor knows
        assert (tables.tensorflow_row(value) if name == "tf" else tables.serving_row(value)) is not None
