"""The values that expressions of recipe.yaml work with, and their operations, as minijinja defines them.

rattler-build evaluates recipes with minijinja, whose values print and compare a little differently from Python's:
``true`` in lower case, an integer and a text never add up, a division by zero is infinite.
"""

from __future__ import annotations

import math
import operator
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
    """Return a value that is defined.

    Raises:
        InvalidOperation: it is not.
    """
    if isinstance(value, Undefined) and not value.silent:
        raise InvalidOperation(f"{value.name} is not defined" if value.name else "the value is not defined")
    return value


def is_true(value: Any) -> bool:
    """Return whether a value counts as true.

    Raises:
        InvalidOperation: it is not defined.
    """
    return False if require_defined(value) is NOTHING else bool(value)


def printed_text(value: Any) -> str:
    """Return a value as it is printed.

    Raises:
        InvalidOperation: it is not defined.
    """
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
            return function(left, right)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise InvalidOperation(f"{name}: {error}") from error

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
    """Return whether two values are equal.

    Raises:
        InvalidOperation: one of them is not defined.
    """
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
