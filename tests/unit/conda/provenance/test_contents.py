"""The license files of a package, in its metadata and in its payload, and as both bills of materials list them."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import files as base_files
from kiln.conda import package_reader
from kiln.conda.provenance import contents, sbom
from tests.packages import conda_package, release_package
from tests.publishing import record

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.conda.provenance.contents import LicenseFile

OWN = json.dumps("do as you like").encode()  # the text that a release_package has in its metadata
NOTICES = b"== Eigen\nMPL\x00\r\nend"
SITE = "lib/python3.12/site-packages"


def files_of(folder: Path, payload: dict[str, bytes], expression: str = "MIT") -> tuple[LicenseFile, ...]:
    package = release_package(folder, "a", payload=payload)
    return contents.package_license_files(package, package_reader.read_info_files(package), expression=expression)


def all_files(folder: Path) -> tuple[LicenseFile, ...]:
    installed = {f"{SITE}/tf/THIRD_PARTY_NOTICES.txt": NOTICES, f"{SITE}/a-1.dist-info/licenses/x/MIT": OWN}
    return files_of(folder, {"bin/a": b"a", **installed, "share/license.py": b"1"})


def test_license_files_have_hashes_texts_and_the_license_that_metadata_name(tmp_path: Path) -> None:
    metadata, notices, copy = all_files(tmp_path)
    assert [metadata.path, notices.path, copy.path] == [
        "info/licenses/LICENCE",
        f"{SITE}/tf/THIRD_PARTY_NOTICES.txt",
        f"{SITE}/a-1.dist-info/licenses/x/MIT",
    ]
    assert metadata.sha1 == hashlib.sha1(OWN, usedforsecurity=False).hexdigest()
    assert notices.sha256 == hashlib.sha256(NOTICES).hexdigest()
    assert notices.text == "== Eigen\nMPL\ufffd\nend"
    assert (metadata.licenses, copy.licenses) == (("MIT",), ("MIT",)), "the same text has the same license"
    assert notices.licenses == (f"LicenseRef-text-{notices.sha256[:16]}",)


@pytest.mark.parametrize(
    ("expression", "licenses"),
    [
        ("Apache-2.0 WITH LLVM-exception", ("Apache-2.0 WITH LLVM-exception",)),
        ("MIT AND (Apache-2.0 OR MIT)", ("MIT", "Apache-2.0")),
        ("LicenseRef-Own", ("LicenseRef-Own",)),
    ],
)
def test_a_single_text_has_the_licenses_of_the_expression(
    tmp_path: Path, expression: str, licenses: tuple[str, ...]
) -> None:
    (file,) = files_of(tmp_path, {}, expression)
    assert file.licenses == licenses


def test_of_several_texts_none_is_identified(tmp_path: Path) -> None:
    info = {"licenses/LICENSE-MIT": b"mit", "licenses/LICENSE-APACHE": b"apache", "licenses/NOTICE": b"notice"}
    files = contents.package_license_files(tmp_path / "unread.conda", info, expression="MIT OR Apache-2.0")
    assert [file.expression for file in files] == ["", "", ""]
    assert len({file.licenses for file in files}) == len(files)
    (mit, _) = contents.package_license_files(
        tmp_path / "unread.conda", {"licenses/LICENSE-MIT": b"mit", "licenses/NOTICE": b"notice"}, expression="MIT"
    )
    assert mit.expression == "MIT", "a notice is about others"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("share/doc/a/COPYING", True),
        ("share/licenses/a/anything", True),
        ("include/THIRD_PARTY_TF_C_LICENSES", True),
        ("lib/a/LICENSE.md", True),
        ("lib/a/license.py", False),
        ("lib/a/licensed.txt", False),
        ("lib/a/" + "_" * 4000 + "LICENSE", False),
    ],
)
def test_license_files_are_known_by_name_or_folder(path: str, expected: bool) -> None:
    assert contents.is_license_file(path) is expected


def test_texts_are_limited_and_hashes_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "LONGEST_TEXT", 10)
    monkeypatch.setattr(contents, "LONGEST_TEXTS", 12)
    monkeypatch.setattr(contents, "read_chunks", partial(base_files.read_chunks, size=4))
    data = {"share/a/LICENSE": b"0123456789", "share/b/LICENSE": b"0123456789a", "share/c/LICENSE": b"012"}
    texts = {file.path: file for file in files_of(tmp_path, data)}
    assert texts["share/a/LICENSE"].text == "0123456789"
    assert (texts["share/b/LICENSE"].text, texts["share/c/LICENSE"].text) == ("", "")
    assert texts["share/b/LICENSE"].sha256 == hashlib.sha256(b"0123456789a").hexdigest()
    assert texts["share/b/LICENSE"].sha256 in texts["share/b/LICENSE"].text_or_location


@pytest.mark.parametrize("listed", [7, {"paths": 7}, {"paths": [7, {"_path": 7}, {"_path": "a/LICENSE"}]}])
def test_an_invalid_list_of_files_has_no_license_files(tmp_path: Path, listed: Any) -> None:
    package = conda_package(tmp_path / "a-1-0.conda", {"index.json": {}, "paths.json": listed}, payload={"a": b"a"})
    assert contents.package_license_files(package, package_reader.read_info_files(package), expression="MIT") == ()


def test_spdx_lists_license_files_with_the_texts_of_unknown_licenses(tmp_path: Path) -> None:
    files = all_files(tmp_path)
    document = json.loads(sbom.spdx_bill_of_materials(record("a-1-0.conda"), licenses=files))
    (first, notices, _) = document["files"]
    assert (first["fileName"], first["licenseInfoInFiles"]) == ("./info/licenses/LICENCE", ["MIT"])
    assert {item["algorithm"]: item["checksumValue"] for item in notices["checksums"]} == {
        "SHA1": files[1].sha1,
        "SHA256": files[1].sha256,
    }
    (extracted,) = document["hasExtractedLicensingInfos"]
    assert [extracted["licenseId"]] == notices["licenseInfoInFiles"]
    assert extracted["extractedText"] == files[1].text
    relations = [item for item in document["relationships"] if item["relationshipType"] == "METAFILE_OF"]
    assert [item["spdxElementId"] for item in relations] == [file["SPDXID"] for file in document["files"]]


def test_cyclonedx_lists_license_files_as_parts_of_the_package(tmp_path: Path) -> None:
    files = all_files(tmp_path)
    document = json.loads(sbom.cyclonedx_bill_of_materials(record("a-1-0.conda"), licenses=files))
    metadata, notices, _ = document["metadata"]["component"]["components"]
    assert metadata["licenses"] == [{"expression": "MIT"}]
    assert notices["licenses"][0]["license"]["text"]["content"] == files[1].text
    assert notices["hashes"][1] == {"alg": "SHA-256", "content": files[1].sha256}


def test_cyclonedx_has_the_text_of_copies_once(tmp_path: Path) -> None:
    files = files_of(tmp_path, {"share/a/NOTICE": NOTICES, "share/b/NOTICE": NOTICES})
    document = json.loads(sbom.cyclonedx_bill_of_materials(record("a-1-0.conda"), licenses=files))
    first, second = (part["licenses"][0]["license"] for part in document["metadata"]["component"]["components"][1:])
    assert (first["name"], first["text"]["content"]) == (second["name"], files[1].text)
    assert "text" not in second
