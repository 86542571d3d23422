"""The packages that the solver chose for a build, as a finished package carries them in its rendered recipe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import yaml

from kiln import plain_yaml_loading
from kiln.matchspec_notation import package_name
from kiln.model.provenance import ResolvedPackage
from kiln.serialization import mapping_or_empty

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SCOPES = ("build", "host")  # the environments of tools, and of what is compiled and linked against
RENDERED, RENDERED_V1 = "recipe/meta.yaml", "recipe/rendered_recipe.yaml"
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PLAIN = re.compile(r"[A-Za-z0-9_.!+-]*")
_KNOWN_HOSTS = ("https://conda.anaconda.org/", "https://repo.anaconda.com/pkgs/")
LONGEST = 1000  # characters of a text
_UNQUOTED = {"checksum": ":"}  # in the values of qualifiers
_EXACT = re.compile(r"([a-z0-9_][a-z0-9_.-]*) ([0-9][A-Za-z0-9_.!+]*) ([A-Za-z0-9_.+]+)")


def build_and_host_packages(info: Mapping[str, bytes]) -> tuple[ResolvedPackage, ...]:
    """Return the packages of both environments, from the files below ``info/`` of a package."""
    if RENDERED_V1 in info:
        dependencies = mapping_or_empty(_load_rendered_recipe(info[RENDERED_V1]).get("finalized_dependencies"))
        packages = [
            package_from_record(scope, record)
            for scope in SCOPES
            for record in _list_or_empty(mapping_or_empty(dependencies.get(scope)), "resolved")
            if isinstance(record, dict)
        ]
    else:
        requirements = mapping_or_empty(_load_rendered_recipe(info.get(RENDERED, b"")).get("requirements"))
        packages = list(_packages_of_meta_yaml(requirements))
    return tuple(dict.fromkeys(package for package in packages if _NAME.fullmatch(package.name) and package.version))


def parse_exact_spec(spec: str) -> tuple[str, str] | None:
    """Return version and build string of a spec that only one build satisfies."""
    match = _EXACT.fullmatch(spec)
    return (match[2], match[3]) if match else None


def conda_purl(name: str, version: str = "", **qualifiers: str) -> str:
    """Return the package URL of a conda package."""
    return format_purl("conda", name, version=version, **qualifiers)


def format_purl(purl_type: str, *names: str, version: str = "", **qualifiers: str) -> str:
    """Return a package URL (https://github.com/package-url/purl-spec) with the qualifiers that are not empty."""
    parts = [f"pkg:{purl_type}", *(quote(name, safe="") for name in names)]
    more = [f"{key}={quote(value, safe=_UNQUOTED.get(key, ''))}" for key, value in sorted(qualifiers.items()) if value]
    return "/".join(parts) + (f"@{quote(version, safe='')}" if version else "") + (f"?{'&'.join(more)}" if more else "")


def transitive_run_dependencies(records: Iterable[Mapping[str, Any]], name: str) -> tuple[ResolvedPackage, ...]:
    """Return the run dependencies of a package in an environment: what it requires, directly or not.

    ``records`` are those of all packages there, in the fields of an index with their addresses.
    """
    by_name = {str(record["name"]): record for record in records}
    pending, reached = [name], {name}
    while pending:
        record = by_name.get(pending.pop(), {})
        names = {package_name(str(spec)) for spec in record.get("depends") or ()} & by_name.keys() - reached
        pending += names
        reached |= names
    return tuple(package_from_record("run", by_name[one]) for one in sorted(reached - {name}) if one in by_name)


def is_valid_package(package: ResolvedPackage) -> bool:
    """Return whether a package is one that this module returns; what a build reports may be forged."""
    texts = (package.version, package.build, package.subdir)
    return (
        len(package.name) <= LONGEST
        and _NAME.fullmatch(package.name) is not None
        and bool(package.version)
        and all(len(text) <= LONGEST and _PLAIN.fullmatch(text) for text in texts)
        and (not package.sha256 or _SHA256.fullmatch(package.sha256) is not None)
        and all(not url or _is_url_without_credentials(url) for url in (package.url, package.channel))
    )


def environment_description(package: ResolvedPackage) -> str:
    """Return in words where a package was installed: for the build, or as a run dependency, which elsewhere differs."""
    if package.scope == "run":
        return "as tested: a run dependency that the solver chose for the package's tests"
    return f"in the {package.scope} environment"


def package_purl(package: ResolvedPackage) -> str:
    """Return the package URL of a resolved package, with its channel: a name at anaconda.org, else an address."""
    channel = package.channel
    for start in _KNOWN_HOSTS:
        channel = channel.removeprefix(start)
    names = {"build": package.build, "subdir": package.subdir, "channel": channel}
    return conda_purl(package.name, package.version, **names)


def _is_url_without_credentials(url: str) -> bool:
    return (
        len(url) <= LONGEST
        and url.isprintable()
        and url.startswith(("https://", "http://"))
        and "@" not in url
        and "/t/" not in url
    )


def package_from_record(scope: str, record: Mapping[str, Any]) -> ResolvedPackage:
    """Return a package by its record: rattler-build's, an index's, or that of an installed package."""
    texts = {key: str(record.get(key) or "") for key in ("name", "version", "build", "subdir", "url", "sha256")}
    url = texts["url"] if _is_url_without_credentials(texts["url"]) else ""
    sha256 = texts["sha256"] if _SHA256.fullmatch(texts["sha256"]) else ""
    channel, _, subdir = url.rpartition("/")[0].rpartition("/")
    channel = channel if subdir == texts["subdir"] else ""
    return ResolvedPackage(scope=scope, **{**texts, "url": url, "sha256": sha256}, channel=channel)


def _packages_of_meta_yaml(requirements: Mapping[str, Any]) -> Iterator[ResolvedPackage]:
    """Yield the packages of a rendered meta.yaml, which has names, versions and build strings."""
    for scope in SCOPES:
        for spec in _list_or_empty(requirements, scope):
            name, version, build = [*str(spec).split(), "", "", ""][:3]
            yield ResolvedPackage(scope=scope, name=name, version=version, build=build)


def _load_rendered_recipe(data: bytes) -> Mapping[str, Any]:
    """Return a rendered recipe; empty for a text that is none."""
    try:
        return mapping_or_empty(plain_yaml_loading.load(data))
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}


def _list_or_empty(value: Mapping[str, Any], key: str) -> list[Any]:
    item = value.get(key)
    return item if isinstance(item, list) else []
