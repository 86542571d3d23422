"""Requirements of recipe.yaml: match specs as rattler-build prints them, and pins, which stay open until later."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

_SPEC = lazy_pattern(r"(?:([^\s:\[\]]+)::)?([A-Za-z0-9_][A-Za-z0-9_.-]*)\s*(.*)", re.DOTALL)
_SIGNS = ("==", "!=", ">=", "<=", "~=", "=", ">", "<")
_LOOSE = lazy_pattern(r"\s*([,|])\s*")
_BETWEEN = lazy_pattern(r"(==|!=|>=|<=|~=|[=<>])\s+")
_FIELD = lazy_pattern(r"(\w+)\s*=\s*('[^']*'|\"[^\"]*\"|[^\s,'\"]+)")
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


def requirement(given: str) -> Requirement:
    """Return a requirement from its text.

    Raises:
        ValueError: it is neither a match spec nor a pin.
    """
    return _pin(given) if given.lstrip().startswith("{") else canonical_spec(given)


def canonical_spec(spec: str) -> str:
    """Return a match spec as rattler-build prints it: the name in lower case, ``=1.2`` as ``1.2.*``.

    Raises:
        ValueError: it is malformed, or has a version without an operator.
    """
    result = _SPEC.fullmatch(spec.strip())
    if not result:
        raise ValueError("it does not begin with the name of a package")
    channel, name, rest = result.groups()
    rest, fields = _fields(rest)
    words = _LOOSE.sub(r"\1", _BETWEEN.sub(r"\1", rest)).split()
    if len(words) > 2:
        raise ValueError("it has more than a name, a version and a build")
    words = _with_fields(words, fields)
    if words:
        words[0] = "".join(map(_part, re.split(r"([,|()])", words[0])))
    return " ".join([f"{channel}::{name.lower()}" if channel else name.lower(), *words])


def _fields(rest: str) -> tuple[str, dict[str, str]]:
    """Return what stands before brackets, and the fields in them: ``[version='>=1', build=h*]``."""
    before, bracket, inside = rest.partition("[")
    if not bracket:
        return rest, {}
    if not inside.rstrip().endswith("]"):
        raise ValueError("a bracket is not closed")
    result = dict(_FIELD.findall(inside.rstrip()[:-1]))
    if _FIELD.sub("", inside.rstrip()[:-1]).strip(", ") or result.keys() - {"version", "build"}:
        raise ValueError("only version= and build= are supported in brackets")
    return before, {key: value.strip("'\"") for key, value in result.items()}


def _with_fields(words: list[str], fields: Mapping[str, str]) -> list[str]:
    version = fields.get("version", words[0] if words else "")
    build = fields.get("build", words[1] if len(words) > 1 else "")
    return [version or "*", build] if build else [version] if version else []


def _part(version: str) -> str:
    if not version or version in ",|()":
        return version
    if set(version) <= {"*", "."}:
        return "*"
    sign = next((sign for sign in _SIGNS if version.startswith(sign)), "")
    bare = version[len(sign) :]
    if bare.endswith("*") and sign not in {"", "!="}:
        raise ValueError(f"'*' does not go with the operator {sign}")
    if sign == "=":
        return f"{bare}.*"
    if not sign and not bare.endswith("*"):
        raise ValueError(f"the version {version} has no operator: write =={version} or {version}.*")
    return f"{bare[:-1].removesuffix('.')}.*" if not sign else version


def _pin(given: str) -> OpenPin:
    try:
        ((kind, fields),) = json.loads(given).items()
    except (ValueError, AttributeError) as error:
        raise ValueError("a pin stands alone in its requirement") from error
    if kind not in _PIN_KINDS or not isinstance(fields, dict) or "name" not in fields:
        raise ValueError("it is neither a match spec nor a pin")
    return _of_fields(kind, fields)


def _of_fields(kind: str, fields: Mapping[str, str]) -> OpenPin:
    return OpenPin(
        name=str(fields["name"]).lower(),
        subpackage=kind == "pin_subpackage",
        exact=bool(fields.get("exact")),
        lower=fields.get("lower_bound"),
        upper=fields.get("upper_bound"),
        build=fields.get("build"),
    )


def free_name(given: Requirement) -> str:
    """Return the name of a requirement that is nothing else, or nothing."""
    return given if isinstance(given, str) and " " not in given and "::" not in given else ""
