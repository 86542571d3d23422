"""The axes in which configs vary: the fewest keys that distinguish them, and readable names for both."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    # For each config its variant: every key with its values.
    Variants = Mapping[str, Mapping[str, tuple[str, ...]]]

# Keys that readers know come before others; the others by the number of their values.
FIRST = ("cuda_compiler_version", "python", "target_platform")
NAMES = {"cuda_compiler_version": "CUDA", "python": "Python", "target_platform": "platform", "numpy": "NumPy"}
_PIN = lazy_pattern(r"\.\*.*| .*")  # of ``3.10.* *_cpython`` readers need 3.10


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantAxis:
    """One key that varies: its values as the variants have them, in order, each with a readable name."""

    key: str
    values: Mapping[tuple[str, ...], str]

    @property
    def name(self) -> str:
        """The key's readable name."""
        return NAMES.get(self.key, self.key.replace("_", " "))

    def value_of(self, variant: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        """Return the value of a variant."""
        return variant.get(self.key, ("-",))

    def label(self, value: tuple[str, ...]) -> str:
        """Return a value with its key: ``Python 3.10``, ``no CUDA``."""
        text = self.values[value]
        return f"no {self.name}" if text == "none" else f"{self.name} {text}"


def distinguishing_axes(configs: Sequence[str], variants: Variants) -> tuple[VariantAxis, ...]:
    """Return axes of the fewest keys that distinguish the configs; none when a config's variant is unknown."""
    if any(config not in variants for config in configs):
        return ()
    keys = sorted({key for config in configs for key in variants[config]})
    values = {key: [variants[config].get(key, ("-",)) for config in configs] for key in keys}
    # A single config differs from nothing; the first keys describe it.
    distinct_keys = [key for key in FIRST[:2] if key in keys] if len(configs) == 1 else []
    count = 1
    for key in sorted(keys, key=lambda key: _axis_sort_key(key, len(set(values[key])))):
        with_key = len(set(zip(*(values[other] for other in (*distinct_keys, key)), strict=True)))
        if with_key > count:
            distinct_keys.append(key)
            count = with_key
    return tuple(_axis_of_key(key, values[key]) for key in distinct_keys)


def config_labels(configs: Sequence[str], variants: Variants) -> dict[str, str]:
    """Return a distinct name for each config, such as ``CUDA 12.9 · Python 3.10``; else the config's own name."""
    varying_axes = distinguishing_axes(configs, variants)
    names = (
        {config: " · ".join(axis.label(axis.value_of(variants[config])) for axis in varying_axes) for config in configs}
        if varying_axes
        else {}
    )
    unique = len(set(names.values())) == len(configs)
    return names if unique else {config: config for config in configs}


def _axis_sort_key(key: str, values: int) -> tuple[int, int, str]:
    return (FIRST.index(key) if key in FIRST else len(FIRST), -values, key)


def _axis_of_key(key: str, values: Iterable[tuple[str, ...]]) -> VariantAxis:
    ordered = sorted(set(values), key=_natural_sort_key)
    short = {value: ", ".join(_short_value(item) for item in value) for value in ordered}
    distinct = len(set(short.values())) == len(ordered)
    return VariantAxis(key=key, values=short if distinct else {value: ", ".join(value) for value in ordered})


def _short_value(value: str) -> str:
    return "none" if value == "None" else _PIN.sub("", value) or value


def _natural_sort_key(value: tuple[str, ...]) -> list[tuple[int, int, str]]:
    """Return a sort key that orders numbers by size, and words, such as ``None``, before them."""
    parts = [part for item in value for part in re.findall(r"\d+|\D+", item)]
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]
