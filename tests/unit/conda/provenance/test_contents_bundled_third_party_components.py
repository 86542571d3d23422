"""A component that license files name gets the version that Bazel's files declare, and stands in both bills."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.conda.provenance import contents, sbom
from kiln.conda.provenance.contents import LicenseFile
from kiln.conda.provenance.records import ExternalRepository
from tests.publishing import record

if TYPE_CHECKING:
    from kiln.conda.provenance.contents import BundledComponent

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
