"""The license files of a package, in its metadata and in its payload, and as both bills of materials list them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import files as base_files
from kiln.conda import package_reader
from kiln.conda.provenance import contents, sbom
from kiln.conda.provenance.contents import (
    LicenseFile,
    build_and_host_packages,
    conda_purl,
    is_valid_package,
    package_purl,
    parse_exact_spec,
    transitive_run_dependencies,
)
from kiln.conda.provenance.records import ExternalRepository, ResolvedPackage
from tests.packages import conda_package, release_package
from tests.publishing import record

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.conda.provenance.contents import BundledComponent

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


LINE = "-" * 80
GENERATED = "".join(
    f"{LINE}\nBEGIN LICENSE FOR {path}\n{LINE}\nfree\n{LINE}\nEND LICENSE FOR {path}\n{LINE}\n"
    for path in (
        "external/com_google_absl/LICENSE",
        "external/boringssl~0.2024/LICENSE",
        "external/eigen_archive/COPYING",
    )
)
EIGEN = "https%3A%2F%2Fgitlab.com%2Flibeigen%2Feigen%2F-%2Farchive%2F3d90%2Feigen-3d90.tar.gz"
TITLES = f"{LINE}\n== Boring SSL\n\ntext\n{LINE}\n\n{LINE}\n== Farm Hash\n\ntext\n== Not a title\n"
REPOSITORIES = (
    ExternalRepository(
        name="abseil-cpp", alias="com_google_absl", version="20240116.2", registry="https://bcr.bazel.build"
    ),
    ExternalRepository(
        name="eigen_archive", url="https://gitlab.com/libeigen/eigen/-/archive/3d90/eigen-3d90.tar.gz", sha256="ab" * 32
    ),
    ExternalRepository(
        name="com_google_protobuf", url="https://github.com/protocolbuffers/protobuf/archive/v3.21.9.zip"
    ),
    ExternalRepository(name="zlib", version="1.3", registry="https://own.example/r"),
    ExternalRepository(name="ruy", version="841e", url="https://github.com/google/Ruy.git"),
    ExternalRepository(name="grpc", version="v1.45.0", url="https://github.com/grpc/grpc.git"),
    ExternalRepository(name="curl", url="https://curl.example/download/curl-8.4.0.tar.gz"),
)


def license_file(path: str, text: str) -> LicenseFile:
    return LicenseFile(path=path, sha1="cd" * 20, sha256="ab" * 32, text=text)


def all_components() -> tuple[BundledComponent, ...]:
    files = [license_file("include/THIRD_PARTY_TF_C_LICENSES", GENERATED), license_file("a/NOTICES.txt", TITLES)]
    return contents.bundled_and_declared_components(files, REPOSITORIES)


def test_named_components_have_versions_and_others_are_declared() -> None:
    components = all_components()
    assert [(item.name, item.version, bool(item.evidence)) for item in components] == [
        ("abseil-cpp", "20240116.2", True),
        ("boringssl", "0.2024", True),
        ("eigen", "3d90", True),
        ("Farm Hash", "", True),
        ("protobuf", "3.21.9", False),
        ("zlib", "1.3", False),
        ("Ruy", "841e", False),
        ("grpc", "1.45.0", False),
        ("curl", "8.4.0", False),
    ]
    assert components[0].url == "https://bcr.bazel.build/modules/abseil-cpp/20240116.2/source.json"
    assert components[1].evidence == ("include/THIRD_PARTY_TF_C_LICENSES", "a/NOTICES.txt")


def test_package_urls_lead_to_a_registry_a_git_host_or_an_archive() -> None:
    assert [item.purl for item in all_components()] == [
        "pkg:bazel/abseil-cpp@20240116.2",
        "pkg:generic/boringssl@0.2024",
        f"pkg:generic/eigen_archive@3d90?checksum=sha256:{'ab' * 32}&download_url={EIGEN}",
        "pkg:generic/Farm%20Hash",
        "pkg:github/protocolbuffers/protobuf@v3.21.9",
        "pkg:bazel/zlib@1.3?repository_url=https%3A%2F%2Fown.example%2Fr",
        "pkg:github/google/ruy@841e",
        "pkg:github/grpc/grpc@v1.45.0",
        "pkg:generic/curl@8.4.0?download_url=https%3A%2F%2Fcurl.example%2Fdownload%2Fcurl-8.4.0.tar.gz",
    ]


@pytest.mark.parametrize(
    ("url", "version"),
    [
        ("https://github.com/a/b/archive/refs/tags/v1.2.tar.gz", "1.2"),
        ("https://github.com/a/b/releases/download/2024-07-02/b.zip", "2024-07-02"),
        ("https://github.com/a/b/tar.gz/0f1e", "0f1e"),
        ("https://github.com/a/b/archive/0f1e.tar.gz", "0f1e"),
        ("https://www.sqlite.example/2023/sqlite-amalgamation-3400100.zip", "3400100"),
        ("https://a.example/plain.zip", ""),
    ],
)
def test_the_version_of_an_archive_is_in_its_address(url: str, version: str) -> None:
    (component,) = contents.bundled_and_declared_components([], [ExternalRepository(name="b", url=url)])
    assert component.version == version


def test_bazels_files_are_taken_from_the_recipe_of_a_package() -> None:
    info = {"recipe/source/WORKSPACE": b"1", "WORKSPACE": b"2", "recipe/meta.yaml": b"3"}
    assert contents.bazel_files_in_packed_recipe(info) == {"recipe/source/WORKSPACE": b"1"}


def test_long_license_files_are_read_in_linear_time() -> None:
    hostile = ("-" * 39 + "\n== ") * 20_000 + "BEGIN LICENSE FOR " * 20_000
    assert contents.bundled_and_declared_components([license_file("NOTICE", hostile)], []) == ()


def test_spdx_says_what_is_contained() -> None:
    document = json.loads(sbom.spdx_bill_of_materials(record("a-1-0.conda"), bundled=all_components()))
    packages = {item["SPDXID"]: item for item in document["packages"]}
    relations = {(item["relationshipType"], item["relatedSpdxElement"]) for item in document["relationships"]}
    contained = [packages[other] for kind, other in sorted(relations) if kind == "CONTAINS"]
    assert [item["name"] for item in contained] == ["abseil-cpp", "boringssl", "eigen", "Farm Hash"]
    assert contained[2]["checksums"][0]["checksumValue"] == "ab" * 32
    assert "include/THIRD_PARTY_TF_C_LICENSES" in contained[0]["comment"]
    declared = [item for item in document["relationships"] if item["relationshipType"] == "BUILD_DEPENDENCY_OF"]
    assert [packages[item["spdxElementId"]]["name"] for item in declared] == ["protobuf", "zlib", "Ruy", "grpc", "curl"]


def test_cyclonedx_requires_what_is_contained() -> None:
    document = json.loads(sbom.cyclonedx_bill_of_materials(record("a-1-0.conda"), bundled=all_components()))
    parts = [item for item in document["components"] if item["bom-ref"].startswith("component/")]
    assert [item["scope"] for item in parts] == ["required"] * 4 + ["optional"] * 5
    assert document["dependencies"][0]["dependsOn"][1:] == [item["bom-ref"] for item in parts[:4]]


META = b"""
requirements:
  build:
  - gcc_linux-64 14.2.0 h2_1
  host:
  - python 3.12.1 h1_0_cpython
  - python_abi
  run:
  - python >=3.12
"""


def rendered_v1(**changed: Any) -> bytes:
    fields = {"name": "python", "version": "3.12.1", "build": "h1_0", "subdir": "linux-64", "sha256": "ab" * 32}
    one = {**fields, "url": "https://a.example/linux-64/python-3.12.1-h1_0.conda", **changed}
    return json.dumps({"finalized_dependencies": {"build": None, "host": {"resolved": [one, 7]}}}).encode()


def test_conda_builds_layout_has_names_versions_and_build_strings() -> None:
    assert build_and_host_packages({"recipe/meta.yaml": META}) == (
        ResolvedPackage(scope="build", name="gcc_linux-64", version="14.2.0", build="h2_1"),
        ResolvedPackage(scope="host", name="python", version="3.12.1", build="h1_0_cpython"),
    )


def test_rattler_builds_layout_has_addresses_and_hashes_too() -> None:
    (one,) = build_and_host_packages({"recipe/rendered_recipe.yaml": rendered_v1(), "recipe/meta.yaml": META})
    assert (one.scope, one.subdir, one.sha256) == ("host", "linux-64", "ab" * 32)
    assert one.url == "https://a.example/linux-64/python-3.12.1-h1_0.conda"


@pytest.mark.parametrize("url", ["file:///home/me/a.conda", "https://me:secret@a.example/a", "https://a.example/t/x/a"])
def test_an_address_of_one_machine_or_with_credentials_is_left_out(url: str) -> None:
    (one,) = build_and_host_packages({"recipe/rendered_recipe.yaml": rendered_v1(url=url, sha256="not a hash")})
    assert (one.url, one.sha256) == ("", "")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"a: [",
        b"requirements: 7",
        b"requirements: {host: {}}",
        b"\xff\xfe",
        b"a: !!python/name:os.system\n",
    ],
)
def test_a_recipe_that_is_none_has_no_packages(data: bytes) -> None:
    assert (
        build_and_host_packages({"recipe/meta.yaml": data})
        == build_and_host_packages({"recipe/rendered_recipe.yaml": data})
        == ()
    )


def test_only_one_build_satisfies_a_spec_without_operators() -> None:
    assert parse_exact_spec("liba 1.2 h1_0") == ("1.2", "h1_0")
    for spec in ("liba", "liba 1.2", "liba 1.2 h1_*", "liba >=1.2 h1_0", "liba 1.* h1_0"):
        assert parse_exact_spec(spec) is None


def installed_record(name: str, *depends: str, **changed: str) -> dict[str, Any]:
    file = f"https://conda.anaconda.org/conda-forge/linux-64/{name}-1-0.conda"
    fields = {"name": name, "version": "1", "build": "0", "subdir": "linux-64", "url": file, "sha256": "ab" * 32}
    return {**fields, "depends": list(depends), **changed}


def test_run_dependencies_are_what_the_package_requires_and_no_tool_of_its_tests() -> None:
    records = [
        installed_record("a", "liba >=1", "__glibc >=2.17"),
        installed_record("liba", "libb"),
        installed_record("libb", "liba", "a"),
        installed_record("pytest", "libc"),
        installed_record("libc"),
    ]
    packages = transitive_run_dependencies(records, "a")
    assert [(package.scope, package.name) for package in packages] == [("run", "liba"), ("run", "libb")]
    assert packages[0].channel == "https://conda.anaconda.org/conda-forge"
    assert package_purl(packages[0]) == "pkg:conda/liba@1?build=0&channel=conda-forge&subdir=linux-64"
    assert transitive_run_dependencies([], "a") == ()


def test_the_channel_of_a_package_on_this_machine_or_with_a_token_is_unknown() -> None:
    for url in ("file:///home/me/linux-64/liba-1-0.conda", "https://a.example/t/swordfish/c/linux-64/liba-1-0.conda"):
        (package,) = transitive_run_dependencies(
            [installed_record("a", "liba"), installed_record("liba", url=url)], "a"
        )
        assert (package.url, package.channel, package.sha256) == ("", "", "ab" * 32)


def test_another_channel_is_named_by_its_address() -> None:
    url = "https://a.example/c/linux-64/liba-1-0.conda"
    (package,) = transitive_run_dependencies([installed_record("a", "liba"), installed_record("liba", url=url)], "a")
    assert "channel=https%3A%2F%2Fa.example%2Fc&" in package_purl(package)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../a"},
        {"version": ""},
        {"build": "0\x1b[31m"},
        {"subdir": "a" * 2000},
        {"sha256": "ab"},
        {"url": "https://me:swordfish@a.example/a"},
        {"channel": "file:///home/me"},
    ],
)
def test_a_forged_package_is_invalid(changes: dict[str, str]) -> None:
    package = ResolvedPackage(scope="run", name="liba", version="1", build="0", url="https://a.example/a")
    assert is_valid_package(package)
    assert not is_valid_package(dataclasses.replace(package, **changes))


def test_a_purl_quotes_what_is_not_plain() -> None:
    assert conda_purl("_x", "1!2.0+a", build="") == "pkg:conda/_x@1%212.0%2Ba"
