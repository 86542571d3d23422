from __future__ import annotations

import itertools

import pytest
import rattler
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kiln.conda.specs import Version, pinned_range, version_or_none

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
        ("1!2.3", "x.x.x.x.x.x", "x", ">=1!2.3,<1!3.0a0"),  # conda-build forgets the epoch, and what it pinned
        ("1.0.1_", "x.x.x.x.x.x", "x.x.x", ">=1.0.1_,<1.0.2.0a0"),
        ("1.2.3+4.5", "x.x", "x.x", ">=1.2,<1.3.0a0"),
    ],
)
def test_a_pin_makes_a_range(version: str, min_pin: str | None, max_pin: str | None, wanted: str) -> None:
    assert pinned_range(version, min_pin, max_pin) == wanted


WORDS = ("0", "1", "2", "10", "007", "a", "b", "rc", "dev", "post", "DEV")
COMPONENTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map("".join)  # rattler's numbers have 64 bits


@st.composite
def versions(draw: st.DrawFn) -> str:
    """Return versions of every form, except a word with an underscore at its end, where rattler differs from conda."""
    epoch = draw(st.sampled_from(["", "", "1!", "2!"]))
    separator = draw(st.sampled_from([".", "_"]))
    release = separator.join(draw(st.lists(COMPONENTS, min_size=1, max_size=4)))
    underscore = "_" if release[-1].isdigit() and draw(st.booleans()) else ""
    local = draw(st.lists(COMPONENTS, max_size=2))
    return f"{epoch}{release}{underscore}{'+' if local else ''}{'.'.join(local)}"


# Every pair of a list is compared, because drawing a version takes far longer than comparing two. A list is not shrunk,
# which takes minutes: the assertion names the pair.
@settings(phases=[Phase.generate])
@given(texts=st.lists(versions(), min_size=20, max_size=30, unique=True))
def test_the_order_is_rattlers(texts: list[str]) -> None:
    pairs = [(Version(text), rattler.Version(text)) for text in texts]
    for (left, their_left), (right, their_right) in itertools.combinations(pairs, 2):
        expected = (their_left < their_right, their_left == their_right)
        assert (left < right, left == right) == expected, f"{left.text} and {right.text}"


@given(text=versions())
def test_a_version_is_equal_to_itself_with_zeros_added_as_in_rattler(text: str) -> None:
    release, plus, local = text.partition("+")
    longer = f"{release}.0{plus}{local}" if not release.endswith("_") else text
    assert (Version(text) == Version(longer)) == (rattler.Version(text) == rattler.Version(longer))
