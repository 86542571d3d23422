"""The packages that the solver chose for a build, as a finished package carries them in its rendered recipe."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCOPES = ("build", "host")  # the environments of tools, and of what is compiled and linked against
RENDERED, RENDERED_V1 = "recipe/meta.yaml", "recipe/rendered_recipe.yaml"
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_EXACT = re.compile(r"([a-z0-9_][a-z0-9_.-]*) ([0-9][A-Za-z0-9_.!+]*) ([A-Za-z0-9_.+]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPackage:
    """A package in an environment of the build; what the recipe does not say is empty."""

    scope: str
    name: str
    version: str
    build: str
    subdir: str = ""
    url: str = ""
    sha256: str = ""


def resolved(info: Mapping[str, bytes]) -> tuple[ResolvedPackage, ...]:
    """Return the packages of both environments, from the files below ``info/`` of a package."""
    if RENDERED_V1 in info:
        dependencies = _object(_loaded(info[RENDERED_V1]), "finalized_dependencies")
        found = [
            _of_record(scope, record)
            for scope in SCOPES
            for record in _list(_object(dependencies, scope), "resolved")
            if isinstance(record, dict)
        ]
    else:
        requirements = _object(_loaded(info.get(RENDERED, b"")), "requirements")
        found = list(_of_specs(requirements))
    return tuple(dict.fromkeys(package for package in found if _NAME.fullmatch(package.name) and package.version))


def exact(spec: str) -> tuple[str, str] | None:
    """Return version and build string of a spec that only one build satisfies."""
    match = _EXACT.fullmatch(spec)
    return (match[2], match[3]) if match else None


def purl(name: str, version: str = "", **qualifiers: str) -> str:
    """Return the package URL of a conda package (https://github.com/package-url/purl-spec, type conda)."""
    version = f"@{quote(version, safe='.')}" if version else ""
    more = "&".join(f"{key}={quote(value, safe='.')}" for key, value in sorted(qualifiers.items()) if value)
    return f"pkg:conda/{quote(name, safe='.')}{version}" + (f"?{more}" if more else "")


def _of_record(scope: str, record: Mapping[str, Any]) -> ResolvedPackage:
    """Return a package by rattler-build's record of it."""
    texts = {key: str(record.get(key) or "") for key in ("name", "version", "build", "subdir", "url", "sha256")}
    public = texts["url"].startswith(("https://", "http://")) and "@" not in texts["url"] and "/t/" not in texts["url"]
    sha256 = texts["sha256"] if _SHA256.fullmatch(texts["sha256"]) else ""
    return ResolvedPackage(scope=scope, **{**texts, "url": texts["url"] if public else "", "sha256": sha256})


def _of_specs(requirements: Mapping[str, Any]) -> Iterator[ResolvedPackage]:
    """Yield the packages of a rendered meta.yaml, which has names, versions and build strings."""
    for scope in SCOPES:
        for spec in _list(requirements, scope):
            name, version, build = [*str(spec).split(), "", "", ""][:3]
            yield ResolvedPackage(scope=scope, name=name, version=version, build=build)


def _loaded(data: bytes) -> Mapping[str, Any]:
    """Return a rendered recipe; empty for a text that is none."""
    try:
        value = yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe ones
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _object(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    item = value.get(key)
    return item if isinstance(item, dict) else {}


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    item = value.get(key)
    return item if isinstance(item, list) else []
