"""Dataclasses as JSON values and back, and messages between processes."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import threading
import types
import typing
from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import IO, Any, TypeVar, Union, get_args, get_origin, get_type_hints

_LOCK = threading.Lock()  # threads of one process write to the same pipe


def encode(message: Any) -> str:
    """Return a message as a line, without its end."""
    return json.dumps(message)


def decode(line: str | bytes) -> dict[str, Any] | None:
    """Return the message of a line; None for a line of other output."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def write_line(stream: IO[str], line: str) -> None:
    """Write a whole line at once, whatever other threads write."""
    with _LOCK:
        stream.write(f"{line}\n")
        stream.flush()


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file, by default an empty one."""
    try:
        return decode(path.read_bytes()) or {}
    except OSError:
        return {}


Value = TypeVar("Value")
Names = tuple[type, ...]

SCALARS = (str, bool, int, type(None))
_PLAIN = frozenset({*SCALARS, float})


def to_json(value: Any) -> Any:
    """Return a value as JSON values: dataclasses as objects, tuples as lists, paths and enums as strings."""
    if type(value) in _PLAIN:  # most are, and the checks below take longer
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    return [to_json(item) for item in value] if isinstance(value, list | tuple) else value


def from_json_values(kind: type[Value], data: Any, names: Names = ()) -> Value:
    """Return the value of a type that JSON values stand for.

    ``names`` are the classes that a dataclass imports for its annotations alone.

    Raises:
        TypeError: when a value has another type, or a field is missing or unknown.
        ValueError: when a value is not one of an enum.
    """
    value: Value = _value_from_json(kind, data, names)
    return value


def canonical_json(value: Any) -> bytes:
    """Return JSON values as text that is the same for equal values, to be hashed or signed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def iso_timestamp(seconds: float) -> str:
    """Return a time in ISO 8601's format, given in seconds since 1970."""
    import datetime as dt  # slow to import, and rarely needed

    return f"{dt.datetime.fromtimestamp(seconds, tz=dt.timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def mapping_or_empty(value: Any) -> dict[Any, Any]:
    """Return a value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def list_or_empty(value: Any) -> list[Any]:
    """Return a value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def nested_value(node: Any, *keys: str) -> Any:
    """Return the value to which keys lead through mappings; None where one of them is missing."""
    for key in keys:
        node = mapping_or_empty(node).get(key)
    return node


def toml_or_empty(text: str) -> dict[str, Any]:
    """Return the content of a TOML text, empty for a malformed one."""
    library = import_module("tomllib" if sys.version_info >= (3, 11) else "pip._vendor.tomli")
    try:
        value: dict[str, Any] = library.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value


def mappings_in_list(value: Any) -> list[dict[Any, Any]]:
    """Return the mappings in a list; a single one stands for a list of it."""
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]


def _value_from_json(kind: Any, data: Any, names: Names) -> Any:
    origin = get_origin(kind)
    if origin in {Union, types.UnionType}:
        return _convert_union(get_args(kind), data, names)
    if origin is tuple:
        kinds, items = get_args(kind), _require_type(data, list, tuple)
        kinds = kinds[:1] * len(items) if kinds[1:] == (...,) else kinds
        return tuple(_value_from_json(each, item, names) for each, item in zip(kinds, items, strict=True))
    if origin is Mapping:
        return {
            key: _value_from_json(get_args(kind)[1], item, names) for key, item in _require_type(data, Mapping).items()
        }
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = type_hints(kind, names)
        fields = _require_type(data, Mapping).items()
        return kind(
            **{name: _value_from_json(hints[name], item, names) if name in hints else item for name, item in fields}
        )
    return data if kind is Any else _convert_scalar(kind, data)


def _convert_scalar(kind: type, data: Any) -> Any:
    if issubclass(kind, Enum):
        return kind(data)
    if kind is Path:
        return Path(_require_type(data, str))
    if kind is float and type(data) in {float, int}:
        return float(data)
    if kind in SCALARS and type(data) is kind:
        return data
    raise TypeError(f"{data!r} is not of type {kind.__name__}")


def _convert_union(kinds: tuple[Any, ...], data: Any, names: Names) -> Any:
    for kind in kinds[:-1]:
        try:
            return _value_from_json(kind, data, names)
        except (TypeError, ValueError):
            continue
    return _value_from_json(kinds[-1], data, names)


def _require_type(data: Any, *kinds: type) -> Any:
    if not isinstance(data, kinds):
        raise TypeError(f"{data!r} is not of type {' or '.join(kind.__name__ for kind in kinds)}")
    return data


@functools.cache
def type_hints(kind: type, names: Names) -> dict[str, Any]:
    """Return the types of a dataclass's fields; see `from_json_values` for ``names``."""
    scope = {"Mapping": Mapping, "Path": Path, **vars(typing), **{name.__name__: name for name in names}}
    return get_type_hints(kind, localns=scope)
