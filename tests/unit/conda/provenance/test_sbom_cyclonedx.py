"""The CycloneDX bill of a package has the facts of the SPDX one, and CycloneDX's own schema accepts it."""

from __future__ import annotations

import json
from typing import Any

from kiln.conda.provenance import sbom
from tests.publishing import record
from tests.unit.conda.provenance.test_sbom import BUILD, HOST, RUN


def bill(**changed: Any) -> bytes:
    made = record("a-1-0.conda", **{"depends": ("python >=3.12", "liba 1.2 h1_0", "__glibc >=2.17"), **changed})
    return sbom.cyclonedx_bill_of_materials(made, resolved=(HOST, BUILD, RUN))


def test_a_bill_has_requirements_sources_and_environments() -> None:
    document = json.loads(bill())
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
    assert bill() == bill(), "the same package has the same bill"


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
    assert bill_of_an_image() == bill_of_an_image(), "the same packages have the same bill"
