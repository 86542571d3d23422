"""Versions as numbers: a short one, ``12.5``, stands for every release whose version begins with it."""

from __future__ import annotations

from functools import lru_cache

from kiln.lazy_pattern import lazy_pattern

_NUMBERS = lazy_pattern(r"\d{1,9}(?:\.\d{1,9}){0,5}")
_NEWEST = float("inf")


@lru_cache(maxsize=4096)
def version_numbers(text: str) -> tuple[float, ...]:
    """Return ``12.5.1`` as its numbers.

    Raises:
        ValueError: when the text is not a version.
    """
    if not _NUMBERS.fullmatch(text):
        raise ValueError(f"{text!r} is not a version")
    return tuple(int(part) for part in text.split("."))


def is_version(text: str) -> bool:
    """Return whether a text is numbers with dots between them."""
    return _NUMBERS.fullmatch(text) is not None


def versions_agree(one: str, other: str) -> bool:
    """Return whether two versions are equal as far as both go: ``12.5`` and ``12.5.1``."""
    first, second = version_numbers(one), version_numbers(other)
    return first[: len(second)] == second[: len(first)]


def have_same_major(one: str, other: str) -> bool:
    """Return whether two versions have the same first number."""
    return version_numbers(one)[0] == version_numbers(other)[0]


def overlaps_range(version: str, first: str, last: str) -> bool:
    """Return whether a release of a version is from ``first`` to ``last``, where short ones include all releases."""
    parts, upper = version_numbers(version), version_numbers(last)
    return version_numbers(first) <= (*parts, _NEWEST) and parts[: len(upper)] <= upper


def is_at_least(version: str, bound: str) -> bool:
    """Return whether the newest release of a version is not older than a bound."""
    return (*version_numbers(version), _NEWEST) >= version_numbers(bound)


def is_below(version: str, bound: str) -> bool:
    """Return whether a version is older than a bound: ``10.9`` is older than ``11``, ``11`` and ``11.0`` are not."""
    upper = version_numbers(bound)
    return version_numbers(version)[: len(upper)] < upper


def is_in_ranges(version: str, text: str) -> bool:
    """Return whether a version is in ranges in the notation of the tables: ``2.7 3.3-3.7``."""
    return any(overlaps_range(version, *range_bounds(part)) for part in text.split())


def range_bounds(part: str) -> tuple[str, str]:
    """Return the ends of ``3.3-3.7``; of a single version, the version twice."""
    first, _, last = part.partition("-")
    return first, last or first


def lowest_and_highest(text: str) -> tuple[str, str]:
    """Return the lowest and the highest version of ranges in the notation of the tables."""
    parts = text.split()
    return range_bounds(parts[0])[0], range_bounds(parts[-1])[1]
