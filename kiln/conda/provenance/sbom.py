"""The bill of materials of a package, as SPDX 2.3 and as CycloneDX 1.6."""

from __future__ import annotations

import json
import posixpath
import re
import uuid
from typing import TYPE_CHECKING, Any

from kiln import __version__
from kiln.base.serialization import iso_timestamp
from kiln.conda.provenance.contents import conda_purl, environment_description, package_purl, parse_exact_spec
from kiln.conda.specs import package_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kiln.conda.provenance.contents import BundledComponent, LicenseFile
    from kiln.conda.provenance.records import Provenance, ResolvedPackage


NO = "NOASSERTION"
UNSTATED = {"filesAnalyzed": False, "licenseConcluded": NO, "licenseDeclared": NO, "copyrightText": NO}
_RELATIONS = {"build": "BUILD_TOOL_OF", "host": "BUILD_DEPENDENCY_OF", "run": "RUNTIME_DEPENDENCY_OF"}
_REFERENCE = re.compile(r"LicenseRef-[A-Za-z0-9.-]+")
_ID = re.compile(r"[^A-Za-z0-9.-]")


def spdx_bill_of_materials(
    record: Provenance,
    *,
    home: str = "",
    resolved: Sequence[ResolvedPackage] = (),
    licenses: Sequence[LicenseFile] = (),
    bundled: Sequence[BundledComponent] = (),
) -> bytes:
    """Return the bill of a package: itself, sources, requirements, license files, components, and its environments.

    License files are metafiles of the package: SPDX lets a package contain files only where all of them are listed.
    """
    main = "SPDXRef-Package"
    sources = [_source_package(number, one) for number, one in enumerate(record.sources)]
    needs = [_requirement_package(name, spec) for name, spec in _run_requirements(record).items()]
    tools = [
        _environment_or_bundled_package(
            f"{one.scope.capitalize()}-{number}", one, package_purl(one), environment_description(one)
        )
        for number, one in enumerate(resolved)
    ]
    parts = [
        _environment_or_bundled_package(f"Component-{number}", part, part.purl, part.reason_for_listing)
        for number, part in enumerate(bundled)
    ]
    contained = [(item, bool(part.evidence)) for item, part in zip(parts, bundled, strict=True)]
    texts = [_license_file_entry(number, file) for number, file in enumerate(licenses)]
    relations = [
        ("SPDXRef-DOCUMENT", "DESCRIBES", main),
        *((main, "GENERATED_FROM", one["SPDXID"]) for one in sources),
        *((main, "DEPENDS_ON", need["SPDXID"]) for need in needs),
        *((tool["SPDXID"], _RELATIONS[one.scope], main) for tool, one in zip(tools, resolved, strict=True)),
        *((text["SPDXID"], "METAFILE_OF", main) for text in texts),
        *((main, "CONTAINS", part["SPDXID"]) for part, is_there in contained if is_there),
        *((part["SPDXID"], "BUILD_DEPENDENCY_OF", main) for part, is_there in contained if not is_there),
    ]
    extracted = _extracted_license_texts(license_expression(record.license), licenses)
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": record.file.removesuffix(".conda"),
        "documentNamespace": f"urn:sha256:{record.sha256}",
        "creationInfo": {"created": _build_date(record), "creators": [f"Tool: kiln-{record.kiln}"]},
        "packages": [_main_package(main, record, home), *sources, *needs, *tools, *parts],
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
            for one, kind, other in relations
        ],
        **({"files": texts} if texts else {}),
        **({"hasExtractedLicensingInfos": extracted} if extracted else {}),
    }
    return json.dumps(document, indent=1, sort_keys=True).encode()


def _run_requirements(record: Provenance) -> dict[str, str]:
    """Return the run requirements of a package by name, without those of the machine."""
    specs = {package_name(spec): spec for spec in reversed(record.depends)}
    return {name: specs[name] for name in dict.fromkeys(map(package_name, record.depends)) if not name.startswith("__")}


def _main_package(identity: str, record: Provenance, home: str) -> dict[str, Any]:
    declared = license_expression(record.license)
    url = conda_purl(record.name, record.version, build=record.build, subdir=record.subdir, type="conda")
    return {
        **_spdx_package(identity, record.name, version=record.version, place=home, sha256=record.sha256, url=url),
        "packageFileName": record.file,
        "licenseDeclared": declared,
        **({} if declared != NO else {"licenseComments": f"the recipe says: {record.license}"}),
    }


def _spdx_package(
    identity: str, name: str, *, version: str = "", place: str = "", sha256: str = "", url: str = "", comment: str = ""
) -> dict[str, Any]:
    """Return a package of SPDX, with what is known of it; ``url`` is its package URL."""
    purl_reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": url}
    return {
        "SPDXID": identity,
        "name": name,
        **({"versionInfo": version} if version else {}),
        "downloadLocation": place or NO,
        **UNSTATED,
        **({"checksums": [{"algorithm": "SHA256", "checksumValue": sha256}]} if sha256 else {}),
        **({"externalRefs": [purl_reference]} if url else {}),
        **({"comment": comment} if comment else {}),
    }


def _source_package(number: int, source: Mapping[str, Any]) -> dict[str, Any]:
    url = source.get("url") or source.get("git_url") or source.get("path")
    first = url[0] if isinstance(url, (list, tuple)) else url
    address = str(first or NO)
    location = address if "://" in address else NO
    if source.get("git_rev") and location != NO:
        location = f"git+{location}@{source['git_rev']}"
    name = address.rstrip("/").split("/")[-1]
    return _spdx_package(f"SPDXRef-Source-{number}", name, place=location, sha256=source.get("sha256") or "")


def _requirement_package(name: str, spec: str) -> dict[str, Any]:
    """Return a run requirement; a solver chooses its version, unless only one build satisfies it."""
    version, build = parse_exact_spec(spec) or ("", "")
    url = conda_purl(name, version, build=build)
    identity = f"SPDXRef-Need-{_ID.sub('-', name)}"
    return _spdx_package(identity, name, version=version, url=url, comment=f"required: {spec}")


def _environment_or_bundled_package(
    identity: str, part: ResolvedPackage | BundledComponent, url: str, comment: str
) -> dict[str, Any]:
    """Return a part with what is known of it; ``url`` is its package URL, its checksum that of its archive."""
    return _spdx_package(
        f"SPDXRef-{identity}-{_ID.sub('-', part.name)}",
        part.name,
        version=part.version,
        place=part.url,
        sha256=part.sha256,
        url=url,
        comment=comment,
    )


def _license_file_entry(number: int, file: LicenseFile) -> dict[str, Any]:
    """Return a license file; nobody concluded which license it is of."""
    return {
        "SPDXID": f"SPDXRef-License-{number}",
        "fileName": f"./{file.path}",
        "fileTypes": ["TEXT"],
        "checksums": [
            {"algorithm": "SHA1", "checksumValue": file.sha1},
            {"algorithm": "SHA256", "checksumValue": file.sha256},
        ],
        "licenseConcluded": NO,
        "licenseInfoInFiles": list(file.licenses),
        "copyrightText": NO,
    }


def _extracted_license_texts(declared: str, files: Sequence[LicenseFile]) -> list[dict[str, str]]:
    """Return the texts of licenses that are not on SPDX's list: those of the recipe, and of unidentified files."""
    entries = {}
    for name in _REFERENCE.findall(declared):
        texts = [file.text_or_location for file in files if name in file.licenses]
        entries[name] = texts[0] if texts else "The package's metadata name this license; no file is known as its text."
    entries |= {file.license_ref: file.text_or_location for file in files if not file.expression}
    names = {file.license_ref: posixpath.basename(file.path) for file in files}
    return [
        {"licenseId": name, "extractedText": text or "(an empty file)", "name": names.get(name, name)}
        for name, text in sorted(entries.items())
    ]


def license_expression(text: str) -> str:
    """Return a license expression of SPDX, or no assertion when ``text`` is not one."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        return str(canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        return NO


def _build_date(record: Provenance) -> str:
    """Return the date of the package's build, so that the same package has the same bill."""
    return iso_timestamp(record.epoch or 0)


SPEC = "1.6"
_PLACES = {"build": "build", "host": "host", "run": "tested"}  # `run/` are the requirements


def cyclonedx_bill_of_materials(
    record: Provenance,
    *,
    resolved: Iterable[ResolvedPackage] = (),
    licenses: Iterable[LicenseFile] = (),
    bundled: Iterable[BundledComponent] = (),
) -> bytes:
    """Return the bill of a package: itself, sources, requirements, license files, components, and its environments."""
    purl = conda_purl(record.name, record.version, build=record.build, subdir=record.subdir, type="conda")
    library = _library("package", record.name, record.version, purl, record.sha256)
    main = {**library, **_license_field(record.license)}
    files = tuple(licenses)
    first = {file.license_ref: file.path for file in reversed(files)}
    texts = [_license_file_component(file, has_text=first[file.license_ref] == file.path) for file in files]
    main |= {"components": texts} if texts else {}
    requirements = [_requirement_component(name, spec) for name, spec in _run_requirements(record).items()]
    sources = [_source_component(number, source) for number, source in enumerate(record.sources)]
    tools = [_environment_package_component(package) for package in resolved]
    parts = [_bundled_component(number, part) for number, part in enumerate(bundled)]
    needed = [item["bom-ref"] for item in (*requirements, *parts) if item["scope"] == "required"]
    return _serialized_document(
        f"urn:sha256:{record.sha256}",
        main,
        components=[*requirements, *sources, *tools, *parts],
        needed=needed,
        timestamp=_build_date(record),
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
    declared = license_expression(text)
    named = [{"license": {"name": text}}] if text else []
    return {"licenses": [{"expression": declared}] if declared != NO else named}


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
    described, sha256 = _source_package(number, source), source.get("sha256")
    location = described["downloadLocation"]
    hashes = {"hashes": [{"alg": "SHA-256", "content": sha256}]} if sha256 else {}
    address = {"externalReferences": [{"type": "source-distribution", "url": location}]} if location != NO else {}
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
