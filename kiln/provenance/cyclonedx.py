"""The bill of materials of a package as CycloneDX 1.6 in JSON (https://cyclonedx.org/docs/1.6/json/)."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from kiln import __version__
from kiln.provenance import spdx
from kiln.provenance.resolved_package_reader import conda_purl, environment_description, package_purl, parse_exact_spec
from kiln.serialization import iso_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kiln.model.provenance import Provenance, ResolvedPackage
    from kiln.provenance.bundled_third_party_components import BundledComponent
    from kiln.provenance.license_files import LicenseFile

SPEC = "1.6"
_PLACES = {"build": "build", "host": "host", "run": "tested"}  # `run/` are the requirements


def bill_of_materials(
    record: Provenance,
    *,
    resolved: Iterable[ResolvedPackage] = (),
    licenses: Iterable[LicenseFile] = (),
    bundled: Iterable[BundledComponent] = (),
) -> bytes:
    """Return the bill of a package: itself, sources, requirements, license files, components, and its environments."""
    main = _main_component(record)
    files = tuple(licenses)
    first = {file.license_ref: file.path for file in reversed(files)}
    texts = [_license_file_component(file, has_text=first[file.license_ref] == file.path) for file in files]
    main |= {"components": texts} if texts else {}
    requirements = [_requirement_component(name, spec) for name, spec in spdx.run_requirements(record).items()]
    sources = [_source_component(number, source) for number, source in enumerate(record.sources)]
    tools = [_environment_package_component(package) for package in resolved]
    parts = [_bundled_component(number, part) for number, part in enumerate(bundled)]
    needed = [item["bom-ref"] for item in (*requirements, *parts) if item["scope"] == "required"]
    return _serialized_document(
        f"urn:sha256:{record.sha256}",
        main,
        components=[*requirements, *sources, *tools, *parts],
        needed=needed,
        timestamp=spdx.build_date(record),
        kiln=record.kiln,
    )


def bill_of_installed_packages(
    name: str, packages: Sequence[ResolvedPackage], licenses: Mapping[str, str], epoch: int
) -> bytes:
    """Return the bill of installed packages, such as those of an image; ``licenses`` are texts by package name.

    ``epoch`` is its time in seconds since 1970, so that the same packages have the same bill.
    """
    components = [
        {
            **_library(f"package/{package.name}", package.name, package.version, package_purl(package), package.sha256),
            **_license_field(licenses.get(package.name, "")),
            "properties": [{"name": "conda:build", "value": package.build}],
        }
        for package in packages
    ]
    return _serialized_document(
        json.dumps([name, components], sort_keys=True),
        {"type": "container", "bom-ref": "image", "name": name},
        components=components,
        needed=[item["bom-ref"] for item in components],
        timestamp=iso_timestamp(epoch),
        kiln=__version__,
    )


def _serialized_document(
    identity: str,
    main: Mapping[str, Any],
    *,
    components: Sequence[Mapping[str, Any]],
    needed: Sequence[str],
    timestamp: str,
    kiln: str,
) -> bytes:
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, identity)}",
        "version": 1,
        "metadata": {
            "timestamp": timestamp,
            "tools": {"components": [{"type": "application", "name": "kiln", "version": kiln}]},
            "component": main,
        },
        "components": components,
        "dependencies": [{"ref": main["bom-ref"], "dependsOn": needed}],
    }
    return json.dumps(document, indent=1, sort_keys=True).encode()


def _license_field(text: str) -> dict[str, Any]:
    """Return the field of a license: an expression, or a name where the text is not one."""
    declared = spdx.license_expression(text)
    named = [{"license": {"name": text}}] if text else []
    return {"licenses": [{"expression": declared}] if declared != spdx.NO else named}


def _main_component(record: Provenance) -> dict[str, Any]:
    purl = conda_purl(record.name, record.version, build=record.build, subdir=record.subdir, type="conda")
    main = _library("package", record.name, record.version, purl, record.sha256)
    return {**main, **_license_field(record.license)}


def _license_file_component(file: LicenseFile, *, has_text: bool) -> dict[str, Any]:
    """Return a license file, as a part of the package; of files with the same text, the first has it."""
    text = {"text": {"contentType": "text/plain", "content": file.text_or_location}} if has_text else {}
    return {
        "type": "file",
        "bom-ref": f"file/{file.path}",
        "name": file.path,
        "hashes": [{"alg": "SHA-1", "content": file.sha1}, {"alg": "SHA-256", "content": file.sha256}],
        "licenses": [
            {"expression": file.expression} if file.expression else {"license": {"name": file.license_ref, **text}}
        ],
    }


def _bundled_component(number: int, component: BundledComponent) -> dict[str, Any]:
    """Return a component that is bundled, or one that the source declares, which is optional."""
    return {
        **_library_component(
            f"component/{number}/{component.name}", component, component.purl, evidence=component.reason_for_listing
        ),
        "scope": "required" if component.evidence else "optional",
    }


def _library_component(
    identity: str, part: ResolvedPackage | BundledComponent, url: str, **properties: str
) -> dict[str, Any]:
    """Return a part with what is known of it; ``url`` is its package URL, ``properties`` are kiln's own."""
    return {
        **_library(identity, part.name, part.version, url, part.sha256),
        **({"externalReferences": [{"type": "distribution", "url": part.url}]} if part.url else {}),
        "properties": [{"name": f"kiln:{name}", "value": value} for name, value in properties.items()],
    }


def _library(identity: str, name: str, version: str, purl: str, sha256: str = "") -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": identity,
        "name": name,
        **({"version": version} if version else {}),
        "purl": purl,
        **({"hashes": [{"alg": "SHA-256", "content": sha256}]} if sha256 else {}),
    }


def _requirement_component(name: str, spec: str) -> dict[str, Any]:
    """Return a run requirement; a solver chooses its version, unless only one build satisfies it."""
    version, build = parse_exact_spec(spec) or ("", "")
    return {
        **_library(f"run/{name}", name, version, conda_purl(name, version, build=build)),
        "scope": "required",
        "properties": [{"name": "kiln:requirement", "value": spec}],
    }


def _source_component(number: int, source: Mapping[str, Any]) -> dict[str, Any]:
    described, sha256 = spdx.source_package(number, source), source.get("sha256")
    location = described["downloadLocation"]
    hashes = {"hashes": [{"alg": "SHA-256", "content": sha256}]} if sha256 else {}
    address = {"externalReferences": [{"type": "source-distribution", "url": location}]} if location != spdx.NO else {}
    return {
        "type": "file",
        "bom-ref": f"source/{number}",
        "name": described["name"],
        "scope": "excluded",
        **hashes,
        **address,
    }


def _environment_package_component(package: ResolvedPackage) -> dict[str, Any]:
    """Return a package of an environment; those for build and host are not part of the package at run time."""
    identity = f"{_PLACES[package.scope]}/{package.subdir}/{package.name}"
    return {
        **_library_component(identity, package, package_purl(package), environment=environment_description(package)),
        "scope": "required" if package.scope == "run" else "excluded",
    }
