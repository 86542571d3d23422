"""A short version stands for every release whose version begins so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.compat import tables

VERSIONS = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("12.5", "12.5.1", True), ("9", "9.0", True), ("12.5", "12.50", False), ("7.4.1.5", "7.4", True)],
)
def test_versions_agree_as_far_as_both_go(one: str, other: str, same: bool) -> None:
    assert tables.versions_agree(one, other) is same


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
