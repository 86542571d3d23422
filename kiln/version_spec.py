"""Version specs, such as ``>=3.9,<4|5.*``, matched against versions as ``match()`` in recipe.yaml does."""

from __future__ import annotations

from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING

from kiln.lazy_pattern import lazy_pattern
from kiln.versions import Version

if TYPE_CHECKING:
    from collections.abc import Callable

    Test = Callable[[Version], bool]

_TOKEN = lazy_pattern(r"\s*([(),|]|[^(),|]+)")
_CONSTRAINT = lazy_pattern(r"(==|!=|<=|>=|~=|<|>|=)?\s*(\S+?)\s*$")
_LONGEST = 1_000


def matches(version: str, spec: str) -> bool:
    """Return whether a version fits a spec.

    Raises:
        ValueError: one of the two is malformed.
    """
    return compiled(spec)(Version(version))


@lru_cache(maxsize=1024)
def compiled(spec: str) -> Test:
    """Return the test that a spec is.

    Raises:
        ValueError: it is malformed.
    """
    if len(spec) > _LONGEST:
        raise ValueError(f"a version spec of {len(spec):,} characters")
    tokens = [token.strip() for token in _TOKEN.findall(spec)]
    test = _any(tokens)
    if tokens:
        raise ValueError(f"{spec!r} is not a version spec")
    return test


def _any(tokens: list[str]) -> Test:
    tests = [_all(tokens)]
    while tokens and tokens[0] == "|":
        tokens.pop(0)
        tests.append(_all(tokens))
    return tests[0] if len(tests) == 1 else lambda version: any(test(version) for test in tests)


def _all(tokens: list[str]) -> Test:
    tests = [_one(tokens)]
    while tokens and tokens[0] == ",":
        tokens.pop(0)
        tests.append(_one(tokens))
    return tests[0] if len(tests) == 1 else lambda version: all(test(version) for test in tests)


def _one(tokens: list[str]) -> Test:
    if not tokens or tokens[0] in {")", ",", "|"}:
        raise ValueError("a part of the version spec is missing")
    part = tokens.pop(0)
    if part != "(":
        return _constraint(part)
    test = _any(tokens)
    if not tokens or tokens.pop(0) != ")":
        raise ValueError("a parenthesis is not closed")
    return test


def _constraint(text: str) -> Test:
    if text == "*":
        return lambda _: True
    result = _CONSTRAINT.fullmatch(text)
    if not result:
        raise ValueError(f"{text!r} is not a version constraint")
    sign, plain = result[1] or "", result[2]
    bare = plain.removesuffix("*").removesuffix(".")
    starts = plain.endswith("*") or sign == "="
    if starts and sign in {"", "=", "==", "!="}:
        start = Version(bare)
        return lambda version: _starts(version, start) is (sign != "!=")
    return _compared(sign, Version(bare))


def _compared(sign: str, bound: Version) -> Test:
    if sign == "~=":
        prefix = Version(".".join(bound.text.split(".")[:-1]) or bound.text)
        return lambda version: not version < bound and _starts(version, prefix)
    tests: dict[str, Test] = {
        "": lambda version: version == bound,
        "==": lambda version: version == bound,
        "!=": lambda version: version != bound,
        "<": lambda version: version < bound,
        "<=": lambda version: version <= bound,
        ">": lambda version: version > bound,
        ">=": lambda version: version >= bound,
    }
    return tests[sign]


def _starts(version: Version, prefix: Version) -> bool:
    """Return whether a version begins with the components of another; only its last component may go on."""
    last = len(prefix.parts) - 1
    if prefix.local:
        return version.parts == prefix.parts and version.local[: len(prefix.local)] == prefix.local
    for index, component in enumerate(prefix.parts):
        there = version.parts[index] if index < len(version.parts) else [0]
        if index == last:
            return there[: len(component)] == component
        if any(one != other for one, other in zip_longest(there, component, fillvalue=0)):
            return False
    return True
