"""The fields of match specs: conda reads ``name=version=build`` too, but conda-build wants ``name version build``.

The grammar is that of conda/models/match_spec.py and version.py.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kiln.lazy_pattern import lazy_pattern
from kiln.lint.rendering_without_variant import COMPATIBLE_PIN, SUBPACKAGE_PIN
from kiln.versions import version_or_none

_BRACKETS = lazy_pattern(r".*(\[.*\])")
_PARENTHESES = lazy_pattern(r".*(\(.*\))")
_KEYS = lazy_pattern(r"([a-zA-Z0-9_-]+)=")
_NAME = lazy_pattern(r"([^ =<>!~]+)([><!=~ ].+)?")
_VALID_NAME = lazy_pattern(r"(?:__[a-z0-9]|(?:[a-z0-9]|[a-z0-9_](?!_)))[._-]?(?:[a-z0-9]+(?:\.|-|_|$))*$")
_VERSION_BUILD = lazy_pattern(r"(.+?[^><!,|]?)(?:(?<![=!|,<>~])[ =]([^-=,|<>~]+?))?$")
_RELATION = lazy_pattern(r"(=|==|!=|<=|>=|<|>|~=)(?![=<>!~])(\S+)$")
_ARCHIVES = (".conda", ".tar.bz2")
_OTHER_KEYS = frozenset(
    ["build_number", "channel", "subdir", "fn", "url", "md5", "sha256", "license", "license_family", "track_features",
     "features"]
)  # fmt: skip
_MAX_LENGTH = 500  # characters; longer texts are not specs
PIN_STUBS = (COMPATIBLE_PIN, SUBPACKAGE_PIN)


class SpecFields(NamedTuple):
    """The fields of a match spec: its name, whether it has a version, and whether it has more than that."""

    name: str
    versioned: bool
    more: bool


def has_separated_fields(spec: str) -> bool:
    """Return whether the fields of a match spec are valid and separated by single words: name, version, build.

    Jinja and what stands for pins are not checked.
    """
    spec = spec.partition("#")[0].strip()
    if "{{" in spec or spec.startswith(PIN_STUBS):
        return True
    count = len(spec.split())
    return 0 < count <= 3 and match_spec_strictness(spec) == count


def match_spec_strictness(spec: str) -> int | None:
    """Return 1 for a name, 2 for a name and a version, 3 for all else, None for an invalid spec.

    conda calls this the strictness of a spec.
    """
    fields = spec_fields(spec)
    if fields is None:
        return None
    return 3 if fields.more or "*" in fields.name else 2 if fields.versioned else 1


def spec_fields(spec: str) -> SpecFields | None:
    """Return the fields of a match spec in any of conda's notations, None for an invalid spec."""
    if spec.endswith("@"):
        return SpecFields(name="*", versioned=False, more=True)
    if spec.endswith(_ARCHIVES) or len(spec) > _MAX_LENGTH:
        return None
    rest, keys = _spec_and_bracket_keys(spec.partition(" if ")[0])
    if keys is None:
        return None
    if parentheses := _PARENTHESES.match(rest):
        rest = rest.replace(parentheses[1], "")
    *channel, rest = rest.rsplit(":", 2)
    match = _NAME.match(rest)
    if not match or not ("*" in match[1] or _VALID_NAME.match(match[1].lower())):
        return None
    version, build = _version_and_build((match[2] or "").strip())
    if version and "version" not in keys and not is_version_spec(version):
        return None
    more = bool(build or keys - {"version"} or (len(channel) == 2 and channel[0]))
    return SpecFields(name=match[1].lower(), versioned=bool(version or "version" in keys), more=more)


def _spec_and_bracket_keys(spec: str) -> tuple[str, set[str] | None]:
    """Return a spec without its brackets, and the keys in them; None for an invalid key."""
    match = _BRACKETS.match(spec)
    if not match:
        return spec, None if "[" in spec else set()
    keys = set(_KEYS.findall(match[1])) - {"name"}
    return spec.replace(match[1], ""), keys if keys <= {"version", "build", *_OTHER_KEYS} else None


def _version_and_build(text: str) -> tuple[str, str]:
    if not text:
        return "", ""
    match = _VERSION_BUILD.search(text)
    version, build = (match[1], (match[2] or "").strip()) if match else (text, "")
    return _without_equality_signs(version.replace(" ", ""), build), build


def _without_equality_signs(version: str, build: str) -> str:
    """Return a version without the signs of equality that conda drops."""
    if version in {"=", "=="} or not version.startswith("="):
        return version
    bare = version.lstrip("=")
    if version.startswith("==") and not build:
        return bare
    if any(sign in bare for sign in "=,|"):
        return version
    return bare if build or bare.endswith("*") else f"{bare}*"


def is_version_spec(text: str) -> bool:
    """Return whether conda reads a version spec, such as ``>=1.2,<2|==3.*``."""
    return all(_is_valid_version_bound(part.strip()) for part in re.split(r"[|,]", text))


def _is_valid_version_bound(text: str) -> bool:
    text = text.strip("()")
    if text[:1] == "^" or text[-1:] == "$":
        return text[:1] == "^" and text[-1:] == "$"
    if text[:1] in {*"=<>!~"}:
        relation = _RELATION.match(text)
        version = relation[2] if relation else ""
        if not relation or (relation[1] == "~=" and version.endswith(".*")):
            return False
        return version_or_none(version.removesuffix(".*")) is not None
    if "*" in text.rstrip("*") or text == "*" or ("@" in text and not text.endswith("*")):
        return True  # a pattern, any version, or an opaque text
    return version_or_none(text.rstrip("*").rstrip(".") if text.endswith("*") else text) is not None
