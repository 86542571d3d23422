from __future__ import annotations

import itertools

import pytest

from kiln.versions import Version, pinned, version_or_none

# From the documentation of conda's VersionOrder, each smaller than the next.
ASCENDING = [
    "0.4",
    "0.4.1.rc",
    "0.4.1",
    "0.5a1",
    "0.5b3",
    "0.5C1",
    "0.5",
    "0.9.6",
    "0.960923",
    "1.0",
    "1.1dev1",
    "1.1_",
    "1.1a1",
    "1.1.dev1",
    "1.1.a1",
    "1.1.0rc1",
    "1.1.0",
    "1.1.0post1",
    "1.1post1",
    "1996.07.12",
    "1!0.4.1",
    "1!3.1.1.6",
    "2!0.4.1",
]


def test_versions_are_in_condas_order() -> None:
    versions = [Version(text) for text in ASCENDING]
    assert sorted(versions) == versions
    assert all(left < right for left, right in itertools.pairwise(versions))


@pytest.mark.parametrize(("left", "right"), [("1.1", "1.1.0"), ("0.4.1.rc", "0.4.1.RC"), ("1.1.0dev1", "1.1.dev1")])
def test_equal_versions(left: str, right: str) -> None:
    assert Version(left) == Version(right)


@pytest.mark.parametrize("text", ["", "1..2", "1!2!3", "a!1", "+1", "1 2", "3.10.* *_cpython"])
def test_no_versions(text: str) -> None:
    assert version_or_none(text) is None


@pytest.mark.parametrize(
    ("version", "min_pin", "max_pin", "wanted"),
    [
        ("3.11.2", "x.x", "x.x", ">=3.11,<3.12.0a0"),
        ("1.2.3", "x.x.x.x.x.x", "x", ">=1.2.3,<2.0a0"),
        ("1.2.3", None, "x.x.x", "<1.2.4.0a0"),
        ("1.2.3", "x", None, ">=1"),
        ("9b", "x.x", "x", ">=9b,<10a"),
        ("1.1.1.*", "x.x.x", "x.x.x", ">=1.1.1,<1.1.2.0a0"),
        ("2.0.0rc1", "x.x.x.x.x.x", "x.x", ">=2.0.0rc.1,<2.1.0a0"),  # the dot is conda-build's
        ("7", "x.x", "x.x", ">=7,<8.0a0"),
    ],
)
def test_a_pin_makes_a_range(version: str, min_pin: str | None, max_pin: str | None, wanted: str) -> None:
    assert pinned(version, min_pin, max_pin) == wanted
