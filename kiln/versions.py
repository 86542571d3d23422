"""Versions in conda's order, and the ranges that pins make of them."""

from __future__ import annotations

import re
from functools import lru_cache, total_ordering
from itertools import zip_longest
from typing import TYPE_CHECKING

from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from kiln.model.rendered import Pin

_ALLOWED = lazy_pattern(r"[*.+!_0-9a-z]+")
_RUNS = lazy_pattern(r"[0-9]+|[*]+|[^0-9*]+")

Part = list[int | float | str]


@total_ordering
class Version:
    """A version in the order of conda (conda/models/version.py describes it).

    Components stand between dots and underscores; each is a run of numbers and words in turn. Words come before
    numbers, ``dev`` before all words, ``post`` after all numbers, and a missing component counts as 0.
    """

    __slots__ = ("local", "parts", "text")

    def __init__(self, text: str) -> None:
        self.text = _normalized_version_text(text)
        release, plus, local = self.text.partition("+")
        epoch, mark, rest = release.rpartition("!")
        if mark and not epoch.isdigit():
            raise ValueError(f"{text!r}: the epoch is not a number")
        if not rest or "+" in local or (plus and not release):
            raise ValueError(f"{text!r} is not a version")
        self.parts = [_parse_component(epoch or "0"), *map(_parse_component, _split_components(rest))]
        self.local = [_parse_component(part) for part in local.replace("_", ".").split(".")] if plus else []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and not self < other and not other < self

    def __hash__(self) -> int:
        return hash(self.text)

    def __lt__(self, other: Version) -> bool:
        for own, theirs in ((self.parts, other.parts), (self.local, other.local)):
            padding: Part = []
            for left_part, right_part in zip_longest(own, theirs, fillvalue=padding):
                for left, right in zip_longest(left_part, right_part, fillvalue=0):
                    if left != right:
                        return _order_key(left) < _order_key(right)
        return False


def _order_key(item: float | str) -> tuple[int, float, str]:
    return (0, 0, item) if isinstance(item, str) else (1, item, "")


def _normalized_version_text(text: str) -> str:
    version = text.strip().lower()
    if "-" in version and "_" not in version:
        version = version.replace("-", "_")
    if not _ALLOWED.fullmatch(version):
        raise ValueError(f"{text!r} is not a version")
    return version


def _split_components(release: str) -> list[str]:
    # A trailing underscore belongs to the last component: 1.0.1_ comes before 1.0.1a.
    parts = release.removesuffix("_").replace("_", ".").split(".")
    return [*parts[:-1], f"{parts[-1]}_"] if release.endswith("_") else parts


def _parse_component(text: str) -> Part:
    runs: Part = [_parse_digits_or_letters(run) for run in _RUNS.findall(text)]
    if not runs:
        raise ValueError("an empty component in a version")
    return runs if text[0].isdigit() else [0, *runs]


def _parse_digits_or_letters(text: str) -> float | str:
    if text.isdigit():
        return int(text)
    if text == "post":
        return float("inf")
    return "DEV" if text == "dev" else text


@lru_cache(maxsize=8192)
def version_or_none(text: str) -> Version | None:
    """Return the version that a text denotes, or None when it is not a version."""
    try:
        return Version(text)
    except ValueError:
        return None


def pinned_range(version: str, min_pin: str | None = "x.x.x.x.x.x.x", max_pin: str | None = "x") -> str:
    """Return the range that a pin makes of a version: ``pinned('3.11.2', 'x.x', 'x.x')`` is ``>=3.11,<3.12.0a0``.

    Each ``x`` stands for one component to keep; the rules are conda-build's. An epoch stays, as in rattler-build:
    conda-build drops it, and its range then excludes the version itself.

    Raises:
        ValueError: the text is not a version.
    """
    components = Version(version).parts[1:]
    parts, nested = [part for component in components for part in component], len(components) - 1
    epoch = version.partition("!")[0] + "!" if "!" in version else ""
    lower = epoch + _join_components(parts, nested, len(min_pin.split("."))) if min_pin else ""
    upper = epoch + _upper_bound(parts, nested, len(max_pin.split("."))) if max_pin else ""
    if lower and Version(re.sub(r"\.?\*$", "", version)) < Version(lower):
        lower = version  # a pre-release comes before the release that its first components name
    return ",".join(bound for bound in (lower and f">={lower}", upper and f"<{upper}") if bound)


def pinned_spec(pin: Pin, version: str, build: str) -> str:
    """Return the match spec that a pin makes of a package's version and build string, as conda-build writes it.

    Raises:
        ValueError: the text is not a version.
    """
    if pin.exact:
        return f"{pin.name} {version} {build}".strip()
    version = pin.lower or version
    if pin.upper:
        lower = f">={version}," if pin.min_pin or pin.lower else ""
        return f"{pin.name} {lower}<{pin.upper}"
    own_build = " ".join(pin.spec.split()[2:3])
    return " ".join(filter(None, (pin.name, pinned_range(version, pin.min_pin, pin.max_pin), own_build)))


def _join_components(parts: Part, nested: int, count: int) -> str:
    """Return the first ``count`` parts with dots between them, but none after that of the number ``nested``."""
    text = "".join(f"{part}{'' if index == nested else '.'}" for index, part in enumerate(parts[:count]))
    return text.removesuffix(".")


def _upper_bound(parts: Part, nested: int, count: int) -> str:
    count = min(count, len(parts))
    alphabetic = str(parts[min(count, len(parts) - 1)]).isalpha()
    last = parts[count - 1]
    bumped = f"{last + 1}{'a' if alphabetic else '.0a0'}" if isinstance(last, int) else chr(ord(str(last)[0]) + 1)
    return _join_components([*parts[: count - 1], bumped], nested, count)
