"""The nearest combinations are judged as better, keep the machine, and change no more than they need."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln.compat import tables
from kiln.compat.combination import Verdict, combination_from_options, combinations_of_variant
from kiln.compat.verdict import judge_combination


def column(name: str, table: str = "tensorflow") -> list[str]:
    return sorted({row[name] for row in tables.table_rows(table) if row[name]})


ASKED = st.fixed_dictionaries(
    {},
    optional={
        "tf": st.sampled_from(column("tf")),
        "cuda": st.sampled_from(tables.cuda_minor_versions()),
        "cudnn": st.sampled_from([*column("cudnn"), "9.8", "9.10.2"]),
        "python": st.sampled_from(["2.7", "3.6", "3.8", "3.11", "3.13", "3.14"]),
        "compiler": st.sampled_from(["gcc-4.8", "gcc-7", "gcc-13", "gcc-15", "clang-18"]),
        "bazel": st.sampled_from(column("bazel")),
        "gpu": st.sampled_from([*(name.replace("#", "8") for name in column("machine", "cloud")), "7.5", "12.0"]),
        "driver": st.sampled_from(["384.81", "450.80.02", "525.60.13", "535.54.03", "595.71.05"]),
        "glibc": st.sampled_from(["2.12", "2.17", "2.36"]),
    },
)


@settings(max_examples=12, deadline=None)
@given(ASKED)
def test_suggestions_work_on_the_same_machine(asked: dict[str, str]) -> None:
    answer = judge_combination(combination_from_options(asked))
    for suggestion in answer.nearest:
        again = judge_combination(suggestion.combination, suggest=False)
        assert again.verdict is suggestion.verdict
        assert again.verdict in {Verdict.WORKS, Verdict.COSTS}
        assert again.verdict.rank < answer.verdict.rank
        assert (suggestion.combination.gpus, suggestion.combination.glibc) == (
            answer.combination.gpus,
            answer.combination.glibc,
        )
        added = {name for name, _ in suggestion.combination.specified_versions()} - {
            name for name, _ in answer.combination.specified_versions()
        }
        fails = any(finding.rule == "known failure" for finding in answer.findings)
        assert added <= ({"cuda"} if fails else set())
        assert len(suggestion.combination.specified_versions()) == len(answer.combination.specified_versions()) + len(
            added
        )
        assert suggestion.changes
    assert len(answer.nearest) <= 3


NEAREST = [
    ("tf 2.18; cuda 13.0; gpu p3", "cuda", "12.5", '  - "9.3"'),  # it has left Volta behind
    (
        "tf 2.18; cuda 12.5; gpu p2",
        "tf cuda",
        "2.14.0 11.8",
        '  - "sm_35,sm_37,sm_50,sm_60,sm_70,sm_75,sm_80,compute_80"',
    ),  # the newest for Kepler
    ("tf 2.21; cuda 12.5; gpu B200; driver 535.54.03", "driver", "570.26", ""),
    ("cuda 12.9; gpu p3; driver 595.71.05", "driver", "580", ""),  # the last that serves it
    ("cuda 12.5; host gcc-14", "host", "gcc 13", ""),  # the newest that CUDA takes
    (
        "cuda 12.9; gpu p3; built_for sm_60,sm_80,compute_90",
        "built_for",
        "",
        '  - "sm_60,sm_70,sm_80,sm_90,compute_90"',
    ),
    ("tf 2.21; gpu RTX 5090", "cuda", "12.8", '  - "sm_60,sm_70,sm_80,sm_89,sm_90,sm_120,compute_120"'),
    ("tf 99", "tf", "2.21.0", ""),
]


@pytest.mark.parametrize(("asked", "changes", "values", "line"), NEAREST, ids=[asked for asked, *_ in NEAREST])
def test_the_nearest_that_works_changes_what_is_in_the_way(asked: str, changes: str, values: str, line: str) -> None:
    first = judge_combination(combination_from_options(dict(part.split(" ", 1) for part in asked.split("; ")))).nearest[
        0
    ]
    assert sorted(first.changes) == sorted(changes.split())
    assert not values or " ".join(str(getattr(first.combination, name)) for name in changes.split()) == values
    assert not line or line in first.variants


def test_the_newest_release_that_a_driver_runs_comes_before_an_older_one_without_a_cost() -> None:
    nearest = judge_combination(combination_from_options({"tf": "2.21", "driver": "470"})).nearest
    assert [(item.combination.tf, item.verdict) for item in nearest] == [
        ("2.14.0", Verdict.COSTS),
        ("2.11.0", Verdict.WORKS),
    ]


def test_nothing_is_suggested_where_nothing_is_wrong() -> None:
    assert judge_combination(combination_from_options({"tf": "2.18", "cuda": "12.5", "gpu": "p3"})).nearest == ()


VARIANT = {
    "cuda_compiler_version": ("12.9",),
    "cudnn": ("9.8",),
    "cxx_compiler": ("gxx",),
    "cxx_compiler_version": ("13",),
    "python": ("3.12.* *_cpython", "3.13.* *_cp313"),
    "cuda_compute_capabilities": ("sm_70,compute_120",),
}


def test_a_config_is_a_combination_for_each_of_its_pythons() -> None:
    first, second = combinations_of_variant(VARIANT, tf="2.21.0")
    assert (first.tf, first.cuda, first.cudnn, first.host, first.python) == ("2.21.0", "12.9", "9.8", "gcc 13", "3.12")
    assert (second.python, second.built_for) == ("3.13", ("sm_70", "compute_120"))


def test_a_config_for_windows_is_compared_with_the_drivers_of_windows() -> None:
    variant = {"cuda_compiler_version": ("11.2",), "target_platform": ("win-64",)}
    (combination,) = combinations_of_variant(variant)
    answer = judge_combination(combination.with_versions(driver="451.48"), suggest=False)
    assert "CUDA 11.2 needs driver 452.39 or newer" in " ".join(finding.reason for finding in answer.findings)


@pytest.mark.parametrize("value", ["None", "undefined", "", "{{ cuda }}", "12.x"])
def test_an_invalid_version_is_left_open(value: str) -> None:
    (result,) = combinations_of_variant({"cuda_compiler_version": (value,)}, tf=value)
    assert (result.cuda, result.tf) == (None, None)


def test_a_major_version_of_cuda_is_completed_for_the_recipe() -> None:
    assert judge_combination(combination_from_options({"cuda": "12", "gpu": "T4"})).variants[:2] == (
        "cuda_compiler_version:",
        '  - "12.9"',
    )


def test_versions_and_capabilities_are_taken_as_people_write_them() -> None:
    asked = {"tf": "v2.18", "gpu": "sm75,sm_75,7.5"}
    assert combination_from_options(asked) == combination_from_options({"tf": "2.18", "gpu": "7.5"})
