"""The space of all variants as a product of dimensions, and the fewest keys that tell configs apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from kiln.base.errors import VariantFault
from kiln.base.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kiln.recipe.variants.files import Spec

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
        """Return a value with its key, ``Python 3.10``, or alone where that says all; empty for no value."""
        text = self.values[value]
        if text == "-" or self.key == "target_platform":
            return text.strip("-")
        if self.key == "microarch_level":
            return f"x86-64-v{text}"
        return f"no {self.name}" if text == "none" else f"{self.name} {text}"


def distinguishing_axes(configs: Sequence[str], variants: Variants) -> tuple[VariantAxis, ...]:
    """Return axes of the fewest keys that distinguish the configs; none when a config's variant is unknown."""
    if any(config not in variants for config in configs):
        return ()
    keys = sorted({key for config in configs for key in variants[config]})
    values = {key: [variants[config].get(key, ("-",)) for config in configs] for key in keys}
    # A single config differs from nothing; the first keys describe it, of those that its own name has.
    distinct_keys = [key for key in FIRST[:2] if key in keys and key in configs[0]] if len(configs) == 1 else []
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
        {
            config: " · ".join(filter(None, (axis.label(axis.value_of(variants[config])) for axis in varying_axes)))
            for config in configs
        }
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


_MAX_VARIANTS = 20_000  # variants of one platform


class Variant(Mapping[str, "Any"]):
    """One value for every key: the values common to all variants, and this variant's own."""

    __slots__ = ("common", "own")

    def __init__(self, common: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        self.common = common
        self.own = own

    def __getitem__(self, name: str) -> Any:
        return self.own[name] if name in self.own else self.common[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.common
        yield from (name for name in self.own if name not in self.common)

    def __len__(self) -> int:
        return len(self.common.keys() | self.own.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self.common

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        return self.own[name] if name in self.own else self.common.get(name, default)


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """Keys that advance together, and the rows of values that they take."""

    keys: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def where(self, key: str, values: Any) -> Dimension:
        """Return the dimension with only the rows whose ``key`` is in ``values``; unchanged when no row matches.

        If ``values`` is a text, its substrings count as values, as in conda-build.
        """
        if len(self.rows) == 1:
            return self
        indexes_by_value = self._row_indexes_by_value[key]
        selected_values = (
            _substrings_of_lengths(values, self._value_lengths[key]) if isinstance(values, str) else values
        )
        indexes = sorted(
            {index for value in selected_values if value in indexes_by_value for index in indexes_by_value[value]}
        )
        if not indexes or len(indexes) == len(self.rows):
            return self
        return Dimension(keys=self.keys, rows=tuple(self.rows[index] for index in indexes))

    def values(self, key: str) -> tuple[str, ...]:
        """Return the distinct values of a key, in order."""
        return tuple(self._row_indexes_by_value[key])

    @cached_property
    def _row_indexes_by_value(self) -> dict[str, dict[str, list[int]]]:
        indexes: dict[str, dict[str, list[int]]] = {key: {} for key in self.keys}
        for index, row in enumerate(self.rows):
            for key, value in zip(self.keys, row, strict=True):
                indexes[key].setdefault(value, []).append(index)
        return indexes

    @cached_property
    def _value_lengths(self) -> dict[str, set[int]]:
        return {key: set(map(len, indexes)) for key, indexes in self._row_indexes_by_value.items()}


def _substrings_of_lengths(text: str, lengths: set[int]) -> Iterator[str]:
    """Yield the substrings of a text with one of some lengths, lazily: a list of them could fill the memory."""
    for length in lengths:
        if length or not text:
            yield from (text[start : start + length] for start in range(len(text) - length + 1))


@dataclass(frozen=True, kw_only=True)
class FixedDimensions:
    """The part that all subspaces share: settings, zipped groups, and the dimensions with a single row."""

    settings: Mapping[str, Any]
    groups: tuple[tuple[str, ...], ...]
    single: tuple[Dimension, ...]

    @cached_property
    def common_values(self) -> dict[str, Any]:
        """The values that all variants share."""
        values = dict(self.settings)
        for dimension in self.single:
            values.update(zip(dimension.keys, dimension.rows[0], strict=True))
        return values


@dataclass(frozen=True, kw_only=True)
class Space:
    """All variants of a specification, or a part of them; ``varying`` dimensions vary in the whole space."""

    frame: FixedDimensions
    varying: tuple[Dimension, ...]

    @classmethod
    def from_spec(cls, spec: Spec) -> Space:
        """Return the space of a combined specification."""
        from kiln.recipe.variants.files import as_list, setting_keys, zip_groups

        groups = tuple(zip_groups(spec.get("zip_keys")))
        zipped = {key for group in groups for key in group}
        passing = ({"replacements"} | setting_keys(spec)) - zipped
        settings = {key: value for key, value in spec.items() if key in passing and (value or value == "")}
        single = [
            Dimension(keys=(key,), rows=tuple((item,) for item in dict.fromkeys(as_list(_keys_if_mapping(value)))))
            for key, value in spec.items()
            if key not in passing and key not in zipped
        ]
        present = filter(None, (tuple(key for key in group if key in spec) for group in groups))
        tied = [Dimension(keys=group, rows=_zipped_rows(group, spec)) for group in present]
        dimensions = [dimension for dimension in (*single, *tied) if dimension.rows]
        frame = FixedDimensions(
            settings=settings, groups=groups, single=tuple(d for d in dimensions if len(d.rows) == 1)
        )
        return cls(frame=frame, varying=tuple(d for d in dimensions if len(d.rows) > 1))

    @cached_property
    def keys(self) -> frozenset[str]:
        """Every key of the variants, settings included."""
        return frozenset(self.frame.common_values) | {key for dimension in self.varying for key in dimension.keys}

    @cached_property
    def varying_keys(self) -> frozenset[str]:
        """The keys that take more than one value."""
        return frozenset(key for d in self.varying for key in d.keys if len(d.values(key)) > 1)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Every dimension."""
        return (*self.frame.single, *self.varying)

    def dimension(self, key: str) -> Dimension | None:
        """Return the dimension of a key; None when the variants do not have the key."""
        return next((dimension for dimension in (*self.varying, *self.frame.single) if key in dimension.keys), None)

    def where(self, key: str, values: Any) -> Space:
        """Return the space with a key restricted to some values; unchanged when no variant has any of them."""
        if isinstance(values, dict):
            return self
        for index, dimension in enumerate(self.varying):
            if key in dimension.keys:
                narrowed = dimension.where(key, values)
                if narrowed is not dimension:
                    varying = (*self.varying[:index], narrowed, *self.varying[index + 1 :])
                    return Space(frame=self.frame, varying=varying)
        return self

    def reduced_to_keys(self, keep: frozenset[str]) -> Space:
        """Return the space in which only dimensions with a kept key still vary; the others take their first row."""
        varying = tuple(
            d if len(d.rows) == 1 or not keep.isdisjoint(d.keys) else Dimension(keys=d.keys, rows=d.rows[:1])
            for d in self.varying
        )
        return Space(frame=self.frame, varying=varying)

    def with_fixed_dimensions_shared(self) -> Space:
        """Return the same space with the dimensions that no longer vary moved into its frame."""
        fixed = tuple(dimension for dimension in self.varying if len(dimension.rows) == 1)
        if not fixed:
            return self
        frame = FixedDimensions(
            settings=self.frame.settings, groups=self.frame.groups, single=(*self.frame.single, *fixed)
        )
        return Space(frame=frame, varying=tuple(d for d in self.varying if len(d.rows) > 1))

    def variants(self) -> Iterator[Variant]:
        """Yield every variant, the last dimension advancing fastest.

        Raises:
            VariantFault: there are more than the limit.
        """
        size = prod(len(dimension.rows) for dimension in self.varying)
        if size > _MAX_VARIANTS:
            keys = [", ".join(d.keys) + f" ({len(d.rows)} values)" for d in self.varying if len(d.rows) > 1]
            why = f"{size:,} combinations of {'; '.join(keys)}"
            raise VariantFault(
                "the matrix has too many variants", why=why[:500], hint="zip keys that belong together with zip_keys"
            )
        for rows in product(*(dimension.rows for dimension in self.varying)):
            yield self._variant_of_rows(rows)

    def first_variant(self) -> Variant:
        """Return the variant of the first row of every dimension."""
        return self._variant_of_rows([dimension.rows[0] for dimension in self.varying])

    def restricted_to_variant(self, variant: Variant, keys: frozenset[str]) -> Space:
        """Return the space restricted to a variant's values of some keys."""
        space = self
        for key in sorted(keys):
            space = space.where(key, variant[key])
        return space

    def _variant_of_rows(self, rows: Iterable[tuple[str, ...]]) -> Variant:
        own: dict[str, str] = {}
        for dimension, row in zip(self.varying, rows, strict=True):
            own.update(zip(dimension.keys, row, strict=True))
        return Variant(self.frame.common_values, own)


def _keys_if_mapping(value: Any) -> Any:
    return list(value) if isinstance(value, dict) else value


def _zipped_rows(group: tuple[str, ...], spec: Spec) -> tuple[tuple[str, ...], ...]:
    from kiln.recipe.variants.files import as_list

    return tuple(zip(*(as_list(_keys_if_mapping(spec[key])) for key in group), strict=False))


def space_narrowed_to_sources(spec: Spec, sources: Iterable[Mapping[str, Any]]) -> Space:
    """Return the space of a combined specification, narrowed to the values of its sources, the last source first.

    A source that repeats a key selects from the space; where nothing would remain, the source overrode the key and the
    space is unchanged. ``sources`` are in ascending precedence, without the built-in defaults.
    """
    from kiln.recipe.variants.files import setting_keys

    space = Space.from_spec(spec)
    handled = set(setting_keys(spec))
    for source in reversed(list(sources)):
        for key, values in source.items():
            if key not in handled:
                handled.add(key)
                space = space.where(key, values)
    return space.with_fixed_dimensions_shared()
