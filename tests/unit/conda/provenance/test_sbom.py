"""The bill of materials of a package keeps the rules of SPDX 2.3."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kiln.conda.provenance import sbom
from kiln.conda.provenance.records import ResolvedPackage
from tests.publishing import record

# The rules of SPDX 2.3 that concern a document of packages alone: https://spdx.github.io/spdx-spec/v2.3/

REFERENCE = re.compile(r"SPDXRef-[A-Za-z0-9.-]+")
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def bill(**changed: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(sbom.spdx_bill_of_materials(record("a-1-0.conda", **changed)))
    return result


def test_a_bill_of_materials_keeps_the_rules_of_spdx() -> None:
    document = bill(depends=("python >=3.11", "python_abi 3.11.*", "__glibc >=2.17", "lib_x", "lib_x >=1"))
    assert (document["spdxVersion"], document["dataLicense"], document["SPDXID"]) == (
        "SPDX-2.3",
        "CC0-1.0",
        "SPDXRef-DOCUMENT",
    )
    assert MOMENT.fullmatch(document["creationInfo"]["created"])
    assert all(re.match(r"(Tool|Organization|Person): ", item) for item in document["creationInfo"]["creators"])
    assert "#" not in document["documentNamespace"]
    known = [document["SPDXID"], *(package["SPDXID"] for package in document["packages"])]
    assert len(known) == len(set(known))
    assert all(REFERENCE.fullmatch(item) for item in known)
    for relation in document["relationships"]:
        assert {relation["spdxElementId"], relation["relatedSpdxElement"]} <= set(known)
    for package in document["packages"]:
        assert package["name"]
        assert package["downloadLocation"]
        assert package["filesAnalyzed"] is False
        assert all(re.fullmatch(r"[0-9a-f]{64}", item["checksumValue"]) for item in package.get("checksums", ()))


HOST = ResolvedPackage(
    scope="host",
    name="python",
    version="3.12.1",
    build="h1_0_cpython",
    subdir="linux-64",
    url="https://channel.example/linux-64/python-3.12.1-h1_0_cpython.conda",
    sha256="ab" * 32,
)
BUILD = ResolvedPackage(scope="build", name="gcc_linux-64", version="14.2.0", build="h2_1")


RUN = ResolvedPackage(
    scope="run", name="liba", version="1.2", build="h1_0", subdir="linux-64", channel="https://conda.anaconda.org/main"
)


def purl_of(package: dict[str, Any]) -> str:
    return str(package["externalRefs"][0]["referenceLocator"])


def test_a_bill_lists_what_the_package_was_built_with() -> None:
    made = record("a-1-0.conda", depends=("python >=3.12,<3.13.0a0", "liba 1.2 h1_0"))
    document = json.loads(sbom.spdx_bill_of_materials(made, resolved=(HOST, BUILD, RUN)))
    _, _, need, exact, host, tool, tested = document["packages"]
    assert purl_of(tool) == "pkg:conda/gcc_linux-64@14.2.0?build=h2_1"
    assert purl_of(exact) == "pkg:conda/liba@1.2?build=h1_0"
    assert purl_of(host) == "pkg:conda/python@3.12.1?build=h1_0_cpython&subdir=linux-64"
    assert (host["versionInfo"], host["downloadLocation"]) == ("3.12.1", HOST.url)
    relations = {(item["spdxElementId"], item["relationshipType"]) for item in document["relationships"]}
    assert {(host["SPDXID"], "BUILD_DEPENDENCY_OF"), (tool["SPDXID"], "BUILD_TOOL_OF")} < relations
    assert purl_of(tested) == "pkg:conda/liba@1.2?build=h1_0&channel=main&subdir=linux-64"
    assert (tested["SPDXID"], "RUNTIME_DEPENDENCY_OF") in relations
    assert tested["comment"].startswith("as tested: ")
    assert need["comment"] == "required: python >=3.12,<3.13.0a0"
    assert "versionInfo" not in need, "a solver chooses it"


def test_a_bill_lists_sources_and_run_requirements() -> None:
    document = bill()
    names = {package["SPDXID"]: package["name"] for package in document["packages"]}
    relations = {
        (item["relationshipType"], names.get(item["relatedSpdxElement"])) for item in document["relationships"]
    }
    assert relations == {("DESCRIBES", "a"), ("GENERATED_FROM", "a-1.tar.gz"), ("DEPENDS_ON", "python")}
    assert document["packages"][0]["licenseDeclared"] == "MIT"
    assert document["packages"][1]["checksums"][0]["checksumValue"] == "ef" * 32


def test_an_invalid_spdx_license_becomes_a_comment() -> None:
    main = bill(license="as you like")["packages"][0]
    assert main["licenseDeclared"] == "NOASSERTION"
    assert "as you like" in main["licenseComments"]


@pytest.mark.parametrize(
    ("source", "name", "location"),
    [
        ({"url": ("https://a.example/x-1.zip", "https://b.example/x-1.zip")}, "x-1.zip", "https://a.example/x-1.zip"),
        ({"url": "https://a.example/x-1.zip"}, "x-1.zip", "https://a.example/x-1.zip"),
        ({"git_url": "https://a.example/x.git"}, "x.git", "https://a.example/x.git"),
        ({"git_url": "https://a.example/x.git", "git_rev": "v1"}, "x.git", "git+https://a.example/x.git@v1"),
        ({"path": "../src/"}, "src", "NOASSERTION"),
        ({"git_url": "../x", "git_rev": "v1"}, "x", "NOASSERTION"),
        ({}, "NOASSERTION", "NOASSERTION"),
    ],
)
def test_a_source_has_its_address(source: dict[str, Any], name: str, location: str) -> None:
    (result,) = (item for item in bill(sources=(source,))["packages"] if item["SPDXID"] == "SPDXRef-Source-0")
    assert (result["name"], result["downloadLocation"]) == (name, location)
    assert "checksums" not in result


def test_the_channel_is_where_the_package_can_be_downloaded() -> None:
    home = "https://channel.example/linux-64/a-1-0.conda"
    main = json.loads(sbom.spdx_bill_of_materials(record("a-1-0.conda"), home=home))["packages"][0]
    assert main["downloadLocation"] == home
    assert main["externalRefs"][0]["referenceLocator"] == "pkg:conda/a@1?build=0&subdir=linux-64&type=conda"
    assert bill()["packages"][0]["downloadLocation"] == "NOASSERTION"


def cyclonedx_bill(**changed: Any) -> bytes:
    made = record("a-1-0.conda", **{"depends": ("python >=3.12", "liba 1.2 h1_0", "__glibc >=2.17"), **changed})
    return sbom.cyclonedx_bill_of_materials(made, resolved=(HOST, BUILD, RUN))


def test_a_bill_has_requirements_sources_and_environments() -> None:
    document = json.loads(cyclonedx_bill())
    assert document["metadata"]["component"]["purl"] == "pkg:conda/a@1?build=0&subdir=linux-64&type=conda"
    components = {item["bom-ref"]: item for item in document["components"]}
    assert list(components) == [
        "run/python",
        "run/liba",
        "source/0",
        "host/linux-64/python",
        "build//gcc_linux-64",
        "tested/linux-64/liba",
    ]
    assert [components[name]["scope"] for name in list(components)[-2:]] == ["excluded", "required"]
    assert components["tested/linux-64/liba"]["properties"][0]["value"].startswith("as tested: ")
    assert components["run/liba"]["version"] == "1.2"
    assert "version" not in components["run/python"]
    assert components["host/linux-64/python"]["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert components["source/0"]["externalReferences"][0]["url"] == "https://example.org/a-1.tar.gz"
    assert document["dependencies"] == [{"ref": "package", "dependsOn": ["run/python", "run/liba"]}]
    assert cyclonedx_bill() == cyclonedx_bill(), "the same package has the same cyclonedx_bill"


def bill_of_an_image() -> bytes:
    return sbom.bill_of_installed_packages(
        "serving", (HOST, RUN), {"python": "PSF-2.0", "liba": "as you like"}, 1_700_000_000
    )


def test_the_bill_of_an_image_lists_its_packages() -> None:
    document = json.loads(bill_of_an_image())
    python, liba = document["components"]
    assert (python["name"], python["version"], python["licenses"]) == ("python", "3.12.1", [{"expression": "PSF-2.0"}])
    assert liba["licenses"] == [{"license": {"name": "as you like"}}]
    assert liba["purl"] == "pkg:conda/liba@1.2?build=h1_0&channel=main&subdir=linux-64"
    assert document["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert bill_of_an_image() == bill_of_an_image(), "the same packages have the same cyclonedx_bill"
