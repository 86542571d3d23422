"""The combination of variant sources: later ones override earlier ones, zipped keys stay together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.errors import VariantFault
from kiln.variants.files import VariantSource, as_list, zip_groups
from kiln.variants.platform_properties import EXTEND_KEYS

if TYPE_CHECKING:
    from collections.abc import Sequence

Spec = dict[str, "Any"]


def setting_keys(spec: Spec) -> frozenset[str]:
    """Return the keys that carry settings instead of variants."""
    return frozenset({*EXTEND_KEYS, "zip_keys", *as_list(spec.get("extend_keys"))})


def combine_sources(sources: Sequence[VariantSource]) -> Spec:
    """Return the specification that sources combine to; the last source has precedence.

    Lists of settings (``extend_keys``) are united and mappings updated; a zipped key is replaced only together with
    its whole group, or where the lengths agree. The rules are conda-build's (conda_build/variants.py).

    Raises:
        VariantFault: a source replaces a zipped key in a way that leaves its group ambiguous.
    """
    extended = {*EXTEND_KEYS, *(key for source in sources for key in as_list(source.values.get("extend_keys")))}
    zipped = (group for source in sources for group in zip_groups(source.values.get("zip_keys")) if group)
    groups = list(dict.fromkeys(zipped))
    spec: Spec = {"zip_keys": [list(group) for group in groups]} if groups else {}
    for source in sources:
        for key, value in source.values.items():
            if key == "zip_keys":
                continue
            if key in extended:
                _extend_setting(spec, key, value)
            elif isinstance(value, dict):
                spec[key] = dict(value)
            else:
                _replace_values_of_key(spec, source, key, value, groups)
    return spec


def _extend_setting(spec: Spec, key: str, value: Any) -> None:
    if isinstance(value, dict):
        before = spec.get(key)
        spec[key] = {**before, **value} if isinstance(before, dict) else dict(value)
    else:
        spec[key] = list(dict.fromkeys([*as_list(spec.get(key)), *as_list(value)]))


def _replace_values_of_key(
    spec: Spec, source: VariantSource, key: str, value: Any, groups: list[tuple[str, ...]]
) -> None:
    group = next((group for group in groups if key in group), (key,))
    if all(member in source.values for member in group):
        _replace_zip_group(spec, source, key, value, group)
    elif key in spec:
        _replace_zipped_key(spec, source, key, value, group)
    # Else the group is incomplete and there is nothing to replace: conda-build drops the key.


def _replace_zip_group(spec: Spec, source: VariantSource, key: str, value: Any, group: tuple[str, ...]) -> None:
    for member in group:
        values = as_list(source.values[member])
        if len(values) != len(as_list(value)):
            raise VariantFault(
                "zipped keys have different numbers of values",
                at=source.place_of_key(member),
                why=f"{key} has {len(as_list(value))}, {member} has {len(values)}",
                hint="give every key of the group the same number of values",
            )
        spec[member] = values


def _replace_zipped_key(spec: Spec, source: VariantSource, key: str, value: Any, group: tuple[str, ...]) -> None:
    length = len(as_list(value))
    others = [values[member] for values in (source.values, spec) for member in group if member in values]
    if all(len(as_list(other)) == length for other in others):
        spec[key] = as_list(value) if isinstance(value, list) else value
    unknown = [item for item in as_list(value) if item not in spec[key]]
    if unknown:
        absent = [member for member in group if member not in source.values]
        raise VariantFault(
            f"{key} is zipped, and {', '.join(map(repr, unknown))} leaves its group ambiguous",
            at=source.place_of_key(key),
            why=f"the group's other keys ({', '.join(absent)}) are missing, and its present values are {spec[key]}",
            hint=f"give all of {', '.join(group)}, each with {length} value{'s' if length > 1 else ''}",
        )
