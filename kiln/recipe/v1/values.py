"""The values of expressions in recipe.yaml, their operations as minijinja defines them, filters and tests."""

from __future__ import annotations

import math
import operator
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


_MOST_BITS = 127


class InvalidOperation(Exception):
    """An operation does not fit its operands, or a name has no value."""


class Undefined:
    """The value of a name that has none; ``silent`` is that of an ``if`` without ``else``, which prints as nothing."""

    __slots__ = ("name", "silent")

    def __init__(self, name: str = "", *, silent: bool = False) -> None:
        self.name = name
        self.silent = silent


NOTHING = Undefined(silent=True)


def require_defined(value: Any) -> Any:
    """Return a value that is defined."""
    if isinstance(value, Undefined) and not value.silent:
        raise InvalidOperation(f"{value.name} is not defined" if value.name else "the value is not defined")
    return value


def is_true(value: Any) -> bool:
    """Return whether a value counts as true."""
    return False if require_defined(value) is NOTHING else bool(value)


def printed_text(value: Any) -> str:
    """Return a value as it is printed."""
    if isinstance(value, str):
        return str(value)
    if require_defined(value) is NOTHING:
        return ""
    return _nested_text(value)


def _nested_text(value: Any) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_nested_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_nested_text(key)}: {_nested_text(item)}' for key, item in value.items())}}}"
    return _WORDS[value] if value is None or isinstance(value, bool) else str(value)


_WORDS = {None: "none", True: "true", False: "false"}


def arithmetic_function(name: str) -> Callable[[Any, Any], Any]:
    """Return the function of an operator: ``add``, ``sub``, ``mul``, ``div``, ``floordiv``, ``mod``, ``pow``."""
    function = _ARITHMETIC[name]

    def checked_operation(left: Any, right: Any) -> Any:
        if not _operator_fits_operands(name, require_defined(left), require_defined(right)):
            raise InvalidOperation(f"{name} does not fit {_type_name(left)} and {_type_name(right)}")
        try:
            result = function(left, right)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise InvalidOperation(f"{name}: {error}") from error
        if isinstance(result, int) and result.bit_length() > _MOST_BITS:
            raise InvalidOperation(f"{name}: the result is too large")
        return result

    return checked_operation


def _operator_fits_operands(name: str, left: Any, right: Any) -> bool:
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return True
    if name == "add":
        return (isinstance(left, str) and isinstance(right, str)) or (
            isinstance(left, list) and isinstance(right, list)
        )
    return name == "mul" and isinstance(left, (str, list)) and isinstance(right, int)


def _type_name(value: Any) -> str:
    return {str: "a text", bool: "a truth value", list: "a list", dict: "a mapping"}.get(type(value), "a number")


def _quotient(left: Any, right: Any) -> float:
    if right:
        return float(left / right)
    return math.nan if not left else math.copysign(math.inf, left)


def _bounded_power(left: Any, right: Any) -> Any:
    if abs(right) * max(math.log2(abs(left)), 0) > _MOST_BITS if left else False:
        raise ValueError("the result is too large")
    return left**right


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _quotient,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": _bounded_power,
}


def are_equal(left: Any, right: Any) -> bool:
    """Return whether two values are equal."""
    return bool(require_defined(left) == require_defined(right))


def is_less(left: Any, right: Any) -> bool:
    """Return whether a value comes before another; values of different kinds are ordered by their kinds."""
    one, other = _type_rank(require_defined(left)), _type_rank(require_defined(right))
    if one != other:
        return one < other
    try:
        return bool(left < right)
    except TypeError:
        return printed_text(left) < printed_text(right)


def _type_rank(value: Any) -> int:
    ranks = ((type(None), 1), (bool, 2), (int, 3), (float, 3), (str, 4), (list, 6), (dict, 7))
    return next((rank for kind, rank in ranks if isinstance(value, kind)), 0)


def contains(item: Any, items: Any) -> bool:
    """Return whether a text, list or mapping contains something.

    Raises:
        InvalidOperation: it can contain nothing.
    """
    if isinstance(items, str):
        return printed_text(item) in items
    if isinstance(items, (list, tuple, dict)):
        return any(are_equal(item, entry) for entry in items)
    if require_defined(items) is NOTHING:
        return False
    raise InvalidOperation(f"{_type_name(items)} contains nothing")


# Jinja's names of comparisons, and their signs.
SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "lteq": "<=", "gt": ">", "gteq": ">=", "in": "in", "notin": "not in"}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": are_equal,
    "!=": lambda left, right: not are_equal(left, right),
    "<": is_less,
    "<=": lambda left, right: not is_less(right, left),
    ">": lambda left, right: is_less(right, left),
    ">=": lambda left, right: not is_less(left, right),
    "in": contains,
    "not in": lambda item, items: not contains(item, items),
}


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
