"""The filters and tests of expressions in recipe.yaml: those that rattler-build has, and no others."""

from __future__ import annotations

from functools import cmp_to_key
from typing import TYPE_CHECKING, Any

from kiln.recipe_v1.minijinja_value_operations import (
    COMPARISONS,
    NOTHING,
    InvalidOperation,
    Undefined,
    contains,
    is_less,
    is_true,
    printed_text,
    require_defined,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def _items_of_value(value: Any) -> list[Any]:
    if isinstance(value, (str, list, tuple, dict)):
        return list(value)
    if require_defined(value) is NOTHING:
        return []
    raise InvalidOperation(f"{printed_text(value)} has no items")


_sort_key = cmp_to_key(lambda one, other: -is_less(one, other))


def _sort_filter(value: Any, *, reverse: Any = False, case_sensitive: Any = False, attribute: Any = None) -> list[Any]:
    if attribute is not None:
        raise InvalidOperation("sort takes no attribute here")
    folded = not is_true(case_sensitive)
    return sorted(
        _items_of_value(value),
        key=lambda item: _sort_key(item.lower() if folded and isinstance(item, str) else item),
        reverse=is_true(reverse),
    )


def _int_filter(value: Any) -> int:
    try:
        return int(value) if not isinstance(value, str) else _integer_of_text(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidOperation(f"{printed_text(value)!r} is not a number") from error


def _integer_of_text(value: str) -> int:
    try:
        return int(value.strip())
    except ValueError:
        return int(float(value.strip()))


def _default_filter(value: Any, other: Any = "", boolean: Any = False) -> Any:
    if isinstance(value, Undefined):
        return other
    return other if is_true(boolean) and not is_true(value) else value


def _split_filter(value: Any, separator: Any = None, most: Any = None) -> list[str]:
    limit = -1 if most is None else _int_filter(most)
    return printed_text(value).split(None if separator is None else printed_text(separator), limit)


def _trim_filter(value: Any, characters: Any = None) -> str:
    return printed_text(value).strip(None if characters is None else printed_text(characters))


def _reverse_filter(value: Any) -> Any:
    return value[::-1] if isinstance(value, str) else _items_of_value(value)[::-1]


def _unique_filter(value: Any) -> list[Any]:
    result: list[Any] = []
    for item in _items_of_value(value):
        if not contains(item, result):
            result.append(item)
    return result


def _first_or_last_item(value: Any, index: int) -> Any:
    items = _items_of_value(value)
    return items[index] if items else Undefined("the first or last of no items")


def _least_or_greatest_item(value: Any, index: int) -> Any:
    items = sorted(_items_of_value(value), key=_sort_key)
    return items[index] if items else Undefined("the least or greatest of no items")


def _abs_filter(value: Any) -> Any:
    if isinstance(require_defined(value), (int, float)):
        return abs(value)
    raise InvalidOperation(f"{printed_text(value)!r} is not a number")


def _version_to_buildstring_filter(value: Any) -> str:
    words = printed_text(value).split()
    return short_version_without_dots(words[0] if words else "", 2)


def short_version_without_dots(version: str, parts: int) -> str:
    """Return the first parts of a version without dots, as build strings have them: ``311``."""
    return "".join(version.split(".")[:parts])


FILTERS: dict[str, Callable[..., Any]] = {
    "abs": _abs_filter,
    "bool": is_true,
    "default": _default_filter,
    "first": lambda value: _first_or_last_item(value, 0),
    "int": _int_filter,
    "join": lambda value, separator="": printed_text(separator).join(
        printed_text(item) for item in _items_of_value(value)
    ),
    "last": lambda value: _first_or_last_item(value, -1),
    "length": lambda value: len(_items_of_value(value)),
    "list": _items_of_value,
    "lower": lambda value: printed_text(value).lower(),
    "max": lambda value: _least_or_greatest_item(value, -1),
    "min": lambda value: _least_or_greatest_item(value, 0),
    "replace": lambda value, old, new: printed_text(value).replace(printed_text(old), printed_text(new)),
    "reverse": _reverse_filter,
    "sort": _sort_filter,
    "split": _split_filter,
    "trim": _trim_filter,
    "unique": _unique_filter,
    "upper": lambda value: printed_text(value).upper(),
    "version_to_buildstring": _version_to_buildstring_filter,
}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_SIGNS_BY_WORD = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
TESTS: dict[str, Callable[..., bool]] = {
    "boolean": lambda value: isinstance(value, bool),
    "defined": lambda value: not isinstance(value, Undefined),
    "endingwith": lambda value, end: printed_text(value).endswith(printed_text(end)),
    "escaped": lambda _: False,
    "even": lambda value: _is_integer(value) and value % 2 == 0,
    "false": lambda value: value is False,
    "float": lambda value: isinstance(value, float),
    "in": contains,
    "int": _is_integer,
    "integer": _is_integer,
    "none": lambda value: value is None,
    "number": _is_number,
    "odd": lambda value: _is_integer(value) and value % 2 == 1,
    "safe": lambda _: False,
    "sequence": lambda value: isinstance(value, (list, tuple)),
    "startingwith": lambda value, start: printed_text(value).startswith(printed_text(start)),
    "string": lambda value: isinstance(value, str),
    "true": lambda value: value is True,
    "undefined": lambda value: isinstance(value, Undefined),
    **{name: COMPARISONS[sign] for word, sign in _SIGNS_BY_WORD.items() for name in (word, sign)},
}
