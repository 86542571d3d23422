"""Requirements of recipe.yaml: match specs as rattler-build prints them, and pins, which stay open until later."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from kiln.version_spec import require_safe_to_parse

_PIN_KINDS = frozenset({"pin_subpackage", "pin_compatible"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPin:
    """A ``pin_subpackage`` or ``pin_compatible``: the bounds of a version that is known later."""

    name: str
    subpackage: bool
    exact: bool = False
    lower: str | None = None
    upper: str | None = None
    build: str | None = None


Requirement = str | OpenPin


def parse_requirement(given: str) -> Requirement:
    """Return a requirement from its text.

    Raises:
        ValueError: it is neither a match spec nor a pin.
    """
    return _parse_open_pin(given) if given.lstrip().startswith("{") else canonical_spec(given)


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


def _parse_open_pin(given: str) -> OpenPin:
    try:
        ((kind, fields),) = json.loads(given).items()
    except (ValueError, AttributeError) as error:
        raise ValueError("a pin stands alone in its requirement") from error
    if kind not in _PIN_KINDS or not isinstance(fields, dict) or "name" not in fields:
        raise ValueError("it is neither a match spec nor a pin")
    return OpenPin(
        name=str(fields["name"]).lower(),
        subpackage=kind == "pin_subpackage",
        exact=bool(fields.get("exact")),
        lower=fields.get("lower_bound"),
        upper=fields.get("upper_bound"),
        build=fields.get("build"),
    )


def name_of_bare_requirement(given: Requirement) -> str:
    """Return the name of a requirement that is nothing else, or nothing."""
    return given if isinstance(given, str) and " " not in given and "::" not in given else ""
