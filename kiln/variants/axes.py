"""What varies between cells: the fewest keys that tell them apart, and names for people."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    # For each config its variant: every key with its values.
    Variants = Mapping[str, Mapping[str, tuple[str, ...]]]

# Keys that people tell cells by come before others; the latter by the number of their values.
FIRST = ("cuda_compiler_version", "python", "target_platform")
NAMES = {"cuda_compiler_version": "CUDA", "python": "Python", "target_platform": "platform", "numpy": "NumPy"}
_PIN = re.compile(r"\.\*.*| .*")  # of ``3.10.* *_cpython`` people need 3.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One key that varies: each value as the variant has it, in order, with its name for people."""

    key: str
    values: Mapping[tuple[str, ...], str]

    @property
    def name(self) -> str:
        """The key for people."""
        return NAMES.get(self.key, self.key.replace("_", " "))

    def of(self, variant: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        """The value of a variant."""
        return variant.get(self.key, ("-",))

    def label(self, value: tuple[str, ...]) -> str:
        """A value with its key: ``Python 3.10``, ``no CUDA``."""
        shown = self.values[value]
        return f"no {self.name}" if shown == "none" else f"{self.name} {shown}"


def axes(configs: Sequence[str], variants: Variants) -> tuple[Axis, ...]:
    """Return the fewest keys that tell the cells apart; none when a cell's variant is not known."""
    if any(config not in variants for config in configs):
        return ()
    keys = sorted({key for config in configs for key in variants[config]})
    values = {key: [variants[config].get(key, ("-",)) for config in configs] for key in keys}
    # A cell alone differs from nothing; it is told by what people ask for first.
    chosen = [key for key in FIRST[:2] if key in keys] if len(configs) == 1 else []
    apart = 1
    for key in sorted(keys, key=lambda key: _rank(key, len(set(values[key])))):
        with_key = len(set(zip(*(values[each] for each in (*chosen, key)), strict=True)))
        if with_key > apart:
            chosen.append(key)
            apart = with_key
    return tuple(_axis(key, values[key]) for key in chosen)


def labels(configs: Sequence[str], variants: Variants) -> dict[str, str]:
    """Return a name for each cell that tells it from the others: ``CUDA 12.9 · Python 3.10``, or else its config."""
    varying = axes(configs, variants)
    names = (
        {config: " · ".join(axis.label(axis.of(variants[config])) for axis in varying) for config in configs}
        if varying
        else {}
    )
    unique = len(set(names.values())) == len(configs)
    return names if unique else {config: config for config in configs}


def _rank(key: str, values: int) -> tuple[int, int, str]:
    return (FIRST.index(key) if key in FIRST else len(FIRST), -values, key)


def _axis(key: str, values: Iterable[tuple[str, ...]]) -> Axis:
    ordered = sorted(set(values), key=_natural)
    short = {value: ", ".join(_short(each) for each in value) for value in ordered}
    distinct = len(set(short.values())) == len(ordered)
    return Axis(key=key, values=short if distinct else {value: ", ".join(value) for value in ordered})


def _short(value: str) -> str:
    return "none" if value == "None" else _PIN.sub("", value) or value


def _natural(value: tuple[str, ...]) -> list[tuple[int, int, str]]:
    """Order numbers by their size, and words, such as ``None``, before them."""
    parts = [part for each in value for part in re.findall(r"\d+|\D+", each)]
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]
