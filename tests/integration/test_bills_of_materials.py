"""The validators of SPDX and of CycloneDX accept the bills of materials; both take seconds to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln.conda.provenance import sbom
from tests.left_out import MISSING
from tests.publishing import record
from tests.unit.conda.provenance.test_contents import all_components, all_files, files_of
from tests.unit.conda.provenance.test_sbom import BUILD, HOST, RUN, bill_of_an_image, cyclonedx_bill

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("spdx_tools", reason=f"spdx-tools {MISSING}")
pytest.importorskip("cyclonedx", reason=f"cyclonedx-python-lib {MISSING}")
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

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
