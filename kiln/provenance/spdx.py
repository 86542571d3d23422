"""The bill of materials of a package, as SPDX 2.3 in JSON (https://spdx.github.io/spdx-spec/v2.3/)."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import TYPE_CHECKING, Any

from kiln.matchspec_notation import package_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.model.provenance import Provenance

NO = "NOASSERTION"
UNSTATED = {"filesAnalyzed": False, "licenseConcluded": NO, "licenseDeclared": NO, "copyrightText": NO}
_ID = re.compile(r"[^A-Za-z0-9.-]")


def bill(record: Provenance, *, home: str = "") -> bytes:
    """Return the bill of a package: itself, its sources and its run requirements."""
    main = "SPDXRef-Package"
    sources = [_source(number, source) for number, source in enumerate(record.sources)]
    needs = [_need(name) for name in dict.fromkeys(map(package_name, record.depends)) if not name.startswith("__")]
    relations = [
        ("SPDXRef-DOCUMENT", "DESCRIBES", main),
        *((main, "GENERATED_FROM", source["SPDXID"]) for source in sources),
        *((main, "DEPENDS_ON", need["SPDXID"]) for need in needs),
    ]
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": record.file.removesuffix(".conda"),
        "documentNamespace": f"urn:sha256:{record.sha256}",
        "creationInfo": {"created": _moment(record), "creators": [f"Tool: kiln-{record.kiln}"]},
        "packages": [_main(main, record, home), *sources, *needs],
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
            for one, kind, other in relations
        ],
    }
    return json.dumps(document, indent=1, sort_keys=True).encode()


def _main(identity: str, record: Provenance, home: str) -> dict[str, Any]:
    declared = _license(record.license)
    url = f"pkg:conda/{record.name}@{record.version}?build={record.build}&subdir={record.subdir}&type=conda"
    return {
        "SPDXID": identity,
        "name": record.name,
        "versionInfo": f"{record.version}-{record.build}",
        "packageFileName": record.file,
        "downloadLocation": home or NO,
        **UNSTATED,
        "checksums": [{"algorithm": "SHA256", "checksumValue": record.sha256}],
        "licenseDeclared": declared,
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": url},
        ],
        **({} if declared != NO else {"licenseComments": f"the recipe says: {record.license}"}),
    }


def _source(number: int, source: Mapping[str, Any]) -> dict[str, Any]:
    url = source.get("url") or source.get("git_url") or source.get("path")
    first = url[0] if isinstance(url, (list, tuple)) else url
    address = str(first or NO)
    checksum = source.get("sha256")
    location = address if "://" in address else NO
    if source.get("git_rev") and location != NO:
        location = f"git+{location}@{source['git_rev']}"
    return {
        "SPDXID": f"SPDXRef-Source-{number}",
        "name": address.rstrip("/").split("/")[-1],
        "downloadLocation": location,
        **UNSTATED,
        **({"checksums": [{"algorithm": "SHA256", "checksumValue": checksum}]} if checksum else {}),
    }


def _need(name: str) -> dict[str, Any]:
    return {
        "SPDXID": f"SPDXRef-Need-{_ID.sub('-', name)}",
        "name": name,
        "downloadLocation": NO,
        **UNSTATED,
    }


def _license(text: str) -> str:
    """Return a license expression of SPDX, or no assertion when ``text`` is not one."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        return str(canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        return NO


def _moment(record: Provenance) -> str:
    """Return the date of the package's build, so that the same package has the same bill."""
    return f"{dt.datetime.fromtimestamp(record.epoch or 0, tz=dt.timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
