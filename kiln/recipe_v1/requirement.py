"""Requirements of recipe.yaml: match specs as rattler-build prints them, and pins, which stay open until later."""

from __future__ import annotations

import json
from functools import lru_cache

from kiln.model.rendered import Pin
from kiln.version_spec import require_safe_to_parse

_PIN_KINDS = frozenset({"pin_subpackage", "pin_compatible"})


Requirement = str | Pin


def parse_requirement(given: str) -> Requirement:
    """Return a requirement from its text.

    Raises:
        ValueError: it is neither a match spec nor a pin.
    """
    return _parse_pin(given) if given.lstrip().startswith("{") else canonical_spec(given)


@lru_cache(maxsize=8192)
def canonical_spec(spec: str) -> str:
    """Return a match spec as rattler-build prints it: the name in lower case, ``=1.2`` as ``1.2.*``.

    Raises:
        ValueError: it is malformed, or has a version without an operator.
    """
    from rattler import MatchSpec
    from rattler.exceptions import InvalidMatchSpecError

    require_safe_to_parse(spec)
    try:
        given = MatchSpec(str(spec), strict=True)
    except InvalidMatchSpecError as error:
        raise ValueError(str(error).partition("\nCaused by")[0]) from error
    text, bracket, keys = str(given).partition("[")
    if bracket and keys != f'build="{given.build}"]':  # which py-rattler writes so without a version
        raise ValueError("only version= and build= are supported in brackets")
    return f"{text} * {given.build}" if bracket else text


def _parse_pin(given: str) -> Pin:
    """Return a pin; a bound of x's says how many parts of the version count, any other is a version itself."""
    try:
        ((kind, fields),) = json.loads(given).items()
    except (ValueError, AttributeError) as error:
        raise ValueError("a pin stands alone in its requirement") from error
    if kind not in _PIN_KINDS or not isinstance(fields, dict) or "name" not in fields:
        raise ValueError("it is neither a match spec nor a pin")
    lower, upper = fields.get("lower_bound"), fields.get("upper_bound")
    return Pin(
        name=str(fields["name"]).lower(),
        subpackage=kind == "pin_subpackage",
        min_pin=lower if _is_component_pattern(lower) else None,
        max_pin=upper if _is_component_pattern(upper) else None,
        lower=None if _is_component_pattern(lower) else lower,
        upper=None if _is_component_pattern(upper) else upper,
        exact=bool(fields.get("exact")),
        by_engine=kind == "pin_compatible",
        build=fields.get("build"),
    )


def _is_component_pattern(bound: str | None) -> bool:
    return bound is not None and set(bound) <= {"x", "."}


def name_of_bare_requirement(given: Requirement) -> str:
    """Return the name of a requirement that is nothing else, or nothing."""
    return given if isinstance(given, str) and " " not in given and "::" not in given else ""
