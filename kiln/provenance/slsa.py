"""The provenance record of a package as SLSA's predicate, and back.

SLSA's external parameters are what determines the build, its internal ones what describes the machine. A rebuild needs
the fields of both; so the record can be recovered from a predicate alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from kiln.errors import ProvenanceBroken
from kiln.git import COMMIT
from kiln.serialization import iso_timestamp, mapping_or_empty

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HOME = "https://github.com/conda-forge/tensorflow-feedstock"  # kiln's own, see pyproject.toml
DIFFERS_FROM = "differsFromGitCommit"  # the hash of the resource is one over the files that differ
BUILD_TYPE = f"{HOME}/kiln/build/v1"
MACHINE = "urn:kiln:machine:"  # of a builder that is no CI, before the name of the machine
EXTERNAL = (
    "config",
    "variant",
    "recipe",
    "commit",
    "remote",
    "engine",
    "container",
    "image",
    "epoch",
    "extra",
    "feedstock_files",
)
INTERNAL = (
    "workflow",
    "run_url",
    "engine_version",
    "kiln",
    "machine",
    "cores",
    "tests",
    "tested_with",
    "cross_compiled",
    "sbom_sha256",
    "cyclonedx_sha256",
    "log_sha256",
)
OF_THE_FILE = ("subdir", "size", "name", "version", "build", "license", "depends", "sources")
_ALGORITHMS = {"sha256", "sha512", "sha1", "md5"}


def predicate_of_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the predicate of a record: what was built from what, by whom.

    The builder is the CI's workflow, else its run, else the user's machine.
    """
    host = str(record["machine"]).partition(",")[0]
    builder = record.get("workflow") or record.get("run_url") or f"{MACHINE}{quote(host)}"
    moments = {
        name: iso_timestamp(seconds) if isinstance(seconds, (int, float)) else ""
        for name, seconds in (("startedOn", record.get("started")), ("finishedOn", record.get("finished")))
    }
    metadata = {"invocationId": record.get("run_url"), **moments}
    byproducts = [
        {"name": name, "digest": {"sha256": record[key]}}
        for name, key in (("log", "log_sha256"), ("sbom", "sbom_sha256"), ("sbom.cdx", "cyclonedx_sha256"))
        if record.get(key)
    ]
    internal = {**_selected_fields_as_json(record, INTERNAL), "package": _selected_fields_as_json(record, OF_THE_FILE)}
    times = {key: record.get(key) for key in ("started", "finished")}
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": _selected_fields_as_json(record, EXTERNAL),
            "internalParameters": {**internal, "times": times},
            "resolvedDependencies": list(_resolved_dependencies(record)),
        },
        "runDetails": {
            "builder": {
                "id": builder,
                "version": {"kiln": str(record["kiln"]), str(record["engine"]): str(record["engine_version"])},
            },
            "metadata": {key: value for key, value in metadata.items() if value},
            "byproducts": byproducts,
        },
    }


def is_kiln_predicate(value: Mapping[str, Any]) -> bool:
    """Return whether kiln wrote a predicate."""
    definition = value.get("buildDefinition")
    return isinstance(definition, dict) and definition.get("buildType") == BUILD_TYPE


def record_from_predicate(value: Mapping[str, Any], file: str, sha256: str) -> dict[str, Any]:
    """Return the record that one of kiln's own predicates was made from.

    Raises:
        ProvenanceBroken: when it lacks the parts.
    """
    try:
        definition = value["buildDefinition"]
        internal = dict(definition["internalParameters"])
        package, times = internal.pop("package"), internal.pop("times")
        return {**definition["externalParameters"], **internal, **package, **times, "file": file, "sha256": sha256}
    except (KeyError, TypeError, ValueError) as error:
        raise ProvenanceBroken(f"the provenance of {file} is incomplete", why=f"it has no {error}") from error


def build_fact_lines(value: Mapping[str, Any]) -> list[str]:
    """Return who built a package from which commit with which inputs, a line for each fact; others' too."""
    definition, details = mapping_or_empty(value.get("buildDefinition")), mapping_or_empty(value.get("runDetails"))
    builder, metadata = mapping_or_empty(details.get("builder")), mapping_or_empty(details.get("metadata"))
    versions = " ".join(f"{name} {version}" for name, version in mapping_or_empty(builder.get("version")).items())
    name = str(builder.get("id"))
    who = f"the machine {unquote(name.removeprefix(MACHINE))}" if name.startswith(MACHINE) else name
    lines = [f"built by {who}" + (f" ({versions})" if versions else "")]
    if metadata.get("invocationId"):
        lines.append(f"in the run {metadata['invocationId']}")
    if is_kiln_predicate(value):
        lines.append(_build_description(mapping_or_empty(definition.get("externalParameters"))))
    dependencies = definition.get("resolvedDependencies")
    items = dependencies if isinstance(dependencies, list) else ()
    return [*lines, *(_input_description(item) for item in items if isinstance(item, dict))]


def _build_description(parameters: Mapping[str, Any]) -> str:
    """Return the config and the place of one of kiln's own builds."""
    where = f"in the image {parameters.get('image')}" if parameters.get("image") else "on a host"
    return f"built as the config {parameters.get('config')}, by {parameters.get('engine')} {where}"


def _input_description(item: Mapping[str, Any]) -> str:
    """Return an input with its hashes, or the commit of the feedstock or of a source."""
    digests = dict(mapping_or_empty(item.get("digest")))
    name = item.get("uri") or item.get("name")
    if commit := digests.pop("gitCommit", None):
        return f"built from the commit {commit} of {str(name).removeprefix('git+')}"
    if base := mapping_or_empty(item.get("annotations")).get(DIFFERS_FROM):
        name = f"{str(name).removeprefix('git+')}, with changes to its commit {base} that were not committed"
    return f"built from {name}" + "".join(f", {kind} {text}" for kind, text in digests.items())


def _selected_fields_as_json(record: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(json.dumps({name: record.get(name) for name in names}))
    return fields


def _resolved_dependencies(record: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield the feedstock, the sources and the image, each with its hash or commit."""
    if record.get("commit"):
        remote = record.get("remote") or ""
        name: dict[str, str] = {"uri": f"git+{remote}"} if "://" in remote else {"name": remote or "feedstock"}
        match = COMMIT.fullmatch(str(record["commit"]))
        if match and match[2]:
            yield {**name, "digest": {"sha256": match[2]}, "annotations": {DIFFERS_FROM: match[1]}}
        else:
            yield {**name, "digest": {"gitCommit": str(record["commit"])}}
    yield {"name": "recipe", "digest": {"sha256": str(record["recipe"])}}
    for source in record.get("sources") or ():
        yield _source_dependency(source)
    if record.get("image"):
        image, _, digest = str(record["image"]).partition("@")
        sha256 = digest.removeprefix("sha256:")
        yield {"uri": f"docker://{image}", **({"digest": {"sha256": sha256}} if digest != sha256 else {})}


def _source_dependency(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return one source of the recipe as a resource."""
    checkout = source.get("checkout") or {}
    url = source.get("url") or checkout.get("url") or source.get("git_url") or source.get("path") or ""
    address = str(url[0] if isinstance(url, (list, tuple)) and url else url)
    hashes = {**(source.get("hashes") or {}), **{name: source.get(name) for name in _ALGORITHMS}}
    digests = {name: str(value) for name, value in hashes.items() if name in _ALGORITHMS and value}
    if revision := source.get("git_rev") or checkout.get("revision"):
        is_git = bool(source.get("git_url"))
        digests["gitCommit" if is_git else "revision"] = str(revision)
        address = f"git+{address}" if is_git else address
    if source.get("digest"):
        digests["sha256"] = str(source["digest"])
    place = {"uri": address} if "://" in address else {"name": address or "source"}
    return {**place, **({"digest": digests} if digests else {})}
