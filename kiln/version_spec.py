"""Version specs, such as ``>=3.9,<4|5.*``, matched by py-rattler against versions, as ``match()`` in recipe.yaml is."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rattler import VersionSpec

_LONGEST, _DEEPEST = 1_000, 50  # characters and parentheses; the stack of py-rattler's parser ends at some hundreds


def matches(version: str, spec: str) -> bool:
    """Return whether a version fits a spec.

    Raises:
        ValueError: one of the two is malformed.
    """
    from rattler import Version
    from rattler.exceptions import InvalidVersionError

    try:
        return parsed_version_spec(spec).matches(Version(version))
    except InvalidVersionError as error:
        raise ValueError(f"{version!r} is not a version: {error}") from error


@lru_cache(maxsize=1024)
def parsed_version_spec(spec: str) -> VersionSpec:
    """Return a spec as py-rattler has it, in which no space follows an operator.

    Raises:
        ValueError: it is malformed.
    """
    from rattler import VersionSpec
    from rattler.exceptions import InvalidVersionSpecError

    require_safe_to_parse(spec)
    try:
        return VersionSpec(re.sub(r"([<>=!~])\s+", r"\1", spec.strip()))
    except InvalidVersionSpecError as error:
        raise ValueError(f"{spec!r} is not a version spec: {error}") from error


def require_safe_to_parse(spec: str) -> None:
    """Refuse a spec that might end the process that parses it.

    Raises:
        ValueError: it is too long, or nested too deeply.
    """
    if len(spec) > _LONGEST or spec.count("(") > _DEEPEST:
        raise ValueError(f"a version spec of {len(spec):,} characters and {spec.count('('):,} parentheses")
