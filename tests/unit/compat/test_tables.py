"""The tables hold facts with their sources, and do not contradict themselves."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.compat import tables
from kiln.compat.combination import capability_number, find_gpu
from kiln.compat.rules import RULES

# How many rows each table has at least: a row that is lost is noticed.
ROWS = {
    "built": 6,
    "cloud": 54,
    "cuda_compat": 9,
    "cuda_compiler": 26,
    "cuda_driver": 61,
    "cuda_minor": 3,
    "cudnn": 50,
    "driver_gpu": 3,
    "gpu": 165,
    "jetson": 3,
    "known_failure": 5,
    "metal": 13,
    "processor": 2,
    "requirement": 34,
    "serving": 18,
    "system": 8,
    "tensorflow": 38,
    "upstream": 14,
    "wheel": 3,
}


def test_every_table_is_counted() -> None:
    assert {file.stem for file in tables.DATA.glob("*.csv")} == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_every_row_has_a_source_and_none_stands_twice(name: str) -> None:
    rows = tables.table_rows(name)
    assert len(rows) >= ROWS[name]
    assert [row.place for row in rows if len(row["source"]) < 8] == []
    assert len({row.cells for row in rows}) == len(rows)
    assert [name for name, _ in rows[0].cells][-1] == "source"


@pytest.mark.parametrize(
    "name",
    ["cuda_compat", "cuda_compiler", "cuda_driver", "driver_gpu", "known_failure", "serving", "upstream", "wheel"],
)
def test_ranges_do_not_overlap(name: str) -> None:
    rows = sorted(tables.table_rows(name), key=lambda row: tables.version_numbers(row["first"]))
    assert all(tables.version_numbers(row["first"]) <= tables.version_numbers(row["last"]) for row in rows)
    pairs = itertools.pairwise(rows)
    assert [
        (a.text, b.text) for a, b in pairs if not tables.is_below(a["last"], b["first"]) and not _patches(a, b)
    ] == []


def _patches(one: tables.Row, other: tables.Row) -> bool:
    """True if two rows are of patch releases of one line, ``8.0.44`` and ``8.0.61``."""
    return tables.version_numbers(one["last"]) < tables.version_numbers(other["first"])


def test_a_newer_cuda_came_with_a_newer_driver_and_takes_a_newer_gcc() -> None:
    drivers = sorted(tables.table_rows("cuda_driver"), key=lambda row: tables.version_numbers(row["first"]))
    for column in ("driver", "windows"):
        versions = [tables.version_numbers(row[column]) for row in drivers if row[column]]
        assert all(a <= b for a, b in itertools.pairwise(versions)), column
    compilers = tables.table_rows("cuda_compiler")
    assert all(
        tables.version_numbers(a["gcc_below"]) <= tables.version_numbers(b["gcc_below"])
        for a, b in itertools.pairwise(compilers)
    )


def test_every_cuda_that_is_tested_or_shipped_has_its_compiler_and_its_driver() -> None:
    expected = {
        row["cuda"] for name in ("tensorflow", "serving", "built", "upstream") for row in tables.table_rows(name)
    }
    assert [
        cuda
        for cuda in (*expected, *tables.cuda_minor_versions())
        if not (tables.cuda_compiler_row(cuda) and tables.oldest_driver_row_for_cuda(cuda))
    ] == []


def test_a_matrix_of_cudnn_states_both_ends_of_its_gpus_or_none() -> None:
    rows = tables.table_rows("cudnn")
    assert [row.place for row in rows if bool(row["capability_min"]) != bool(row["capability_max"])] == []


def test_every_gpu_of_a_cloud_is_a_gpu_that_some_cuda_compiles_for() -> None:
    for machine in tables.table_rows("cloud"):
        assert (
            tables.oldest_cuda_row_for_capability(
                capability_number(find_gpu(machine["machine"].replace("#", "8")).capability)
            )
            is not None
        )


@pytest.mark.parametrize(
    ("version", "python", "compiler", "bazel", "cudnn", "cuda"),
    [
        ("2.21.0", "3.10-3.13", "clang 18.1.8", "7.4.1", "9.3", "12.5"),
        ("1.15.5", "2.7 3.3-3.7", "gcc 7.3.1", "0.26.1", "7.4", "10.0"),
        ("1.0", "2.7 3.3-3.6", "gcc 4.8", "0.4.2", "5.1", "8"),
    ],
)
def test_tensorflow(version: str, python: str, compiler: str, bazel: str, cudnn: str, cuda: str) -> None:
    row = tables.tensorflow_row(version)
    assert row is not None
    assert [row[name] for name in ("python", "compiler", "bazel", "cudnn", "cuda")] == [
        python,
        compiler,
        bazel,
        cudnn,
        cuda,
    ]


@pytest.mark.parametrize(
    ("version", "bazel", "cuda", "cudnn", "newest"),
    [
        ("1.7.1", "0.5.4", "8.0", "6", 61),
        ("1.12.3", "0.15.0", "9.0", "7.2.1.38", 70),
        ("2.19.1", "6.5.0", "12.2.0", "8.9.4.25", 90),
    ],
)
def test_serving(version: str, bazel: str, cuda: str, cudnn: str, newest: int) -> None:
    row = tables.serving_row(version)
    assert row is not None
    assert [row[name] for name in ("bazel", "cuda", "cudnn")] == [bazel, cuda, cudnn]
    assert max(capability_number(item) for item in row["capabilities"].split(",")) == newest


@pytest.mark.parametrize(
    ("cuda", "lowest", "highest", "gcc"),
    [
        ("8.0", 20, 62, "6"),
        ("11.4.0", 35, 87, "10"),
        ("11.4", 35, 87, "11.2"),
        ("12.8", 50, 120, "15"),
        ("13.4", 75, 121, "17"),
    ],
)
def test_the_capabilities_of_each_cuda(cuda: str, lowest: int, highest: int, gcc: str) -> None:
    row = tables.cuda_compiler_row(cuda)
    assert row is not None
    known = [int(number) for number in row["capabilities"].split()]
    assert (known[0], known[-1], row["gcc_below"]) == (lowest, highest, gcc)
    assert known == sorted(known)


@pytest.mark.parametrize(
    ("cuda", "driver"),
    [
        ("13.4", "615.71.09"),
        ("12.9.2", "575.57.08"),
        ("12.5.1", "555.42.06"),
        ("9.0", "384.81"),
        ("8.0", "367.48"),
    ],
)
def test_the_driver_that_came_with_cuda(cuda: str, driver: str) -> None:
    row = tables.oldest_driver_row_for_cuda(cuda)
    assert row is not None
    assert row["driver"] == driver


def test_the_reference_has_every_table_and_every_rule_in_their_own_words() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "compatibility.md").read_text()
    for name in ROWS:
        assert f"(../../kiln/compat/data/{name}.csv) | {len(tables.table_rows(name))} |" in page
    assert [rule.__name__ for rule in RULES if f"| {str(rule.__doc__).splitlines()[0]} |" not in page] == []


VERSIONS = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("12.5", "12.5.1", True), ("9", "9.0", True), ("12.5", "12.50", False), ("7.4.1.5", "7.4", True)],
)
def test_versions_agree_as_far_as_both_go(one: str, other: str, same: bool) -> None:
    assert tables.versions_agree(one, other) is same


@pytest.mark.parametrize(
    ("version", "oldest", "below", "possible"),
    [
        ("2.1.3", "1.26", "2.2.0", True),
        ("2.2", "1.26", "2.2.0", False),
        ("2", "1.26", "2.2.0", True),  # 2.0 and 2.1 are
        ("2", "1.26", "2.0", False),
        ("1", "1.26", "2.0", True),
        ("1.25", "1.26", "", False),
        ("7", "6.31.1", "", True),
        ("1.24.3", "1.22", "1.24.4", True),
    ],
)
def test_a_short_version_is_within_if_one_of_its_releases_is(
    version: str, oldest: str, below: str, *, possible: bool
) -> None:
    assert tables.can_be_within(version, oldest, below) is possible


@pytest.mark.parametrize(
    ("version", "first", "last", "inside"),
    [
        ("12.5", "12.4", "12.6", True),
        ("12.6.3", "12.4", "12.6", True),
        ("12.7", "12.4", "12.6", False),
        ("11.4", "11.4.0", "11.4.0", True),
        ("11.4.2", "11.4.0", "11.4.0", False),
        ("11.4", "11.4.1", "11.5", True),
        ("9", "9.2", "9.2", True),
    ],
)
def test_a_version_overlaps_a_range(version: str, first: str, last: str, inside: bool) -> None:
    assert tables.overlaps_range(version, first, last) is inside


@pytest.mark.parametrize(
    ("version", "bound", "older"),
    [("13", "14", True), ("14", "14", False), ("14.2", "14", False), ("11.2", "11.2", False)],
)
def test_below_a_bound(version: str, bound: str, older: bool) -> None:
    assert tables.is_below(version, bound) is older


def test_ranges_are_written_as_in_the_tables() -> None:
    assert tables.is_in_ranges("2.7", "2.7 3.3-3.7")
    assert tables.is_in_ranges("3.7.9", "2.7 3.3-3.7")
    assert not tables.is_in_ranges("3.8", "2.7 3.3-3.7")
    assert tables.lowest_and_highest("2.7 3.3-3.7") == ("2.7", "3.7")


@pytest.mark.parametrize("text", ["", "12.", "12.x", "-1", "1" * 12, "1.2.3.4.5.6.7", "12 5"])
def test_an_invalid_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version"):
        tables.version_numbers(text)


@given(VERSIONS, VERSIONS)
def test_a_version_is_at_least_a_bound_or_below_it(version: str, bound: str) -> None:
    assert tables.is_at_least(version, bound) is not (
        tables.is_below(version, bound) and not tables.versions_agree(version, bound)
    )


@given(VERSIONS)
def test_a_version_is_between_itself_and_itself(version: str) -> None:
    assert tables.overlaps_range(version, version, version)
    assert tables.versions_agree(version, version)
