"""Write a mapping of lists in PyYAML's block style, the format of .ci_support files."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import yaml

from kiln.yamltext.typed_text import TypedText

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from yaml import Node


class _CiSupportDumper(yaml.SafeDumper):
    """A dumper that keeps the order of nested mappings and writes true and false unquoted."""


def _represent_text(dumper: yaml.SafeDumper, data: str) -> Node:
    # Variant files hold text only; conda-smithy writes these two words as the booleans that they were.
    if data in {"true", "false"}:
        return dumper.represent_bool(data == "true")
    return dumper.represent_str(data)


_CiSupportDumper.add_representer(str, _represent_text)
_CiSupportDumper.add_representer(dict, lambda dumper, data: dumper.represent_dict(data.items()))


def ci_support_text(data: Mapping[str, Any]) -> str:
    """Return the text of a mapping with sorted outermost keys; values are text, tuples, or mappings in their order."""
    return "".join(_entry_text(key, _hashable_value(data[key])) for key in sorted(data))


def _hashable_value(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_hashable_value(item) for item in value)
    if isinstance(value, TypedText):
        return _FrozenTypedValue((type(value.typed).__name__, value.typed))
    if isinstance(value, str):
        return value
    return _FrozenMapping((key, _hashable_value(item)) for key, item in value.items())


class _FrozenMapping(tuple):  # type: ignore[type-arg]
    """A mapping that can be hashed."""

    __slots__ = ()


class _FrozenTypedValue(tuple):  # type: ignore[type-arg]
    """A number or a truth value with the name of its type, for 1 and true are the same to a memory."""

    __slots__ = ()


@lru_cache(maxsize=4096)
def _entry_text(key: str, value: Any) -> str:
    return str(yaml.dump({key: _value_of_hashable(value)}, Dumper=_CiSupportDumper, default_flow_style=False))


def _value_of_hashable(value: Any) -> Any:
    if isinstance(value, _FrozenTypedValue):
        return value[1]
    if isinstance(value, _FrozenMapping):
        return {key: _value_of_hashable(item) for key, item in value}
    return [_value_of_hashable(item) for item in value] if isinstance(value, tuple) else value
