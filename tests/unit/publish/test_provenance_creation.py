"""The sources of a record, without passwords, and the bills of materials of published packages."""

from __future__ import annotations

import hashlib
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from kiln.conda.provenance.contents import LicenseFile
from kiln.conda.provenance.records import ExternalRepository, ResolvedPackage
from kiln.publish import provenance
from kiln.recipe.feedstock import BuildConfig
from kiln.recipe.rendered import Checkout, RenderedConfig, Source, Staging
from kiln.state.results import TestReport, TestVerdict
from tests.packages import release_package
from tests.publishing import record

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CONFIG = BuildConfig(name="c", platform="linux-64", variant={}, zip_keys=(), pin_run_as_build={}, image=None)


def test_sources_are_recorded_without_their_passwords(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    sources = (
        Source(path="a.txt"),
        Source(url=("https://a.org/a.zip",), hashes={"sha512": "5"}, content_hashes={"sha256": "2"}, no_hoist=True),
        Source(checkout=Checkout(program="svn", url="https://a.org/b", revision="7", user="me", password="swordfish")),
        Source(checkout=Checkout(program="hg", url="https://me:swordfish@a.org/c")),
        Source(git_url="https://me:swordfish@a.org/d"),
        Source(url=("https://me:swordfish@a.org/e",)),
    )
    rendered = RenderedConfig(config=CONFIG, stagings=(Staging(sources=sources),))
    matrix = cast("Any", SimpleNamespace(feedstock=SimpleNamespace(recipe=tmp_path)))
    record = provenance._recorded_sources(matrix, rendered)
    assert "swordfish" not in str(record)
    assert record[:3] == (
        {"path": "a.txt", "digest": hashlib.sha256(b"a").hexdigest()},
        {
            "url": ("https://a.org/a.zip",),
            "hashes": {"sha512": "5"},
            "content_hashes": {"sha256": "2"},
            "no_hoist": True,
        },
        {"checkout": {"program": "svn", "url": "https://a.org/b", "revision": "7"}},
    )


def test_both_bills_of_a_package_list_its_license_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = release_package(tmp_path, "a", payload={"share/a/NOTICE.txt": b"of others"})
    monkeypatch.setattr(provenance, "provenance_record", lambda *_, **__: record("a-1-0.conda", license="CC0-1.0"))
    monkeypatch.setattr(provenance, "recipe_digest", lambda _: "ab")
    made = SimpleNamespace(tests=SimpleNamespace(run_packages=()), repositories=())
    monkeypatch.setattr(provenance, "recorded_build_of_candidate", lambda *_: (None, None, made))
    candidate = cast("Any", SimpleNamespace(path=package, contents=SimpleNamespace(about={})))
    attestation = provenance.release_provenance_and_attestations(
        cast("Any", SimpleNamespace(feedstock=None)), [candidate]
    )
    (documents,) = attestation.documents.values()
    statement, spdx, cyclonedx = documents.values()
    digests = [file["digest"]["sha256"] for file in json.loads(statement)["predicate"]["runDetails"]["byproducts"]]
    assert digests == [hashlib.sha256(bill).hexdigest() for bill in (spdx, cyclonedx)]
    licenses = {file["fileName"]: file["licenseInfoInFiles"] for file in json.loads(spdx)["files"]}
    assert licenses["./info/licenses/LICENCE"] == ["CC0-1.0"]
    assert licenses["./share/a/NOTICE.txt"][0].startswith("LicenseRef-text-")
    parts = json.loads(cyclonedx)["metadata"]["component"]["components"]
    assert [part["name"] for part in parts] == ["info/licenses/LICENCE", "share/a/NOTICE.txt"]


def test_components_have_the_versions_of_the_recipes_sources() -> None:
    declared = b'http_archive(name = "eigen_archive", url = "https://github.com/libeigen/eigen/archive/3.4.0.zip")'
    info = {"recipe/source/WORKSPACE": declared, "recipe/source/other.bzl": declared}
    text = f"{'-' * 80}\nBEGIN LICENSE FOR external/eigen_archive/LICENSE\n"
    file = LicenseFile(path="info/licenses/ALL", sha1="cd" * 20, sha256="ab" * 32, text=text)
    (component,) = provenance._bundled_and_declared_components(info, [file])
    assert (component.purl, component.evidence) == ("pkg:github/libeigen/eigen@3.4.0", ("info/licenses/ALL",))
    built = ExternalRepository(name="eigen_archive", url="https://github.com/libeigen/eigen/archive/5.0.0.zip")
    forged = ExternalRepository(name="forged", url="file:///etc/passwd")
    (component,) = provenance._bundled_and_declared_components(info, [file], [built, forged])
    assert component.purl == "pkg:github/libeigen/eigen@5.0.0", "that of the build counts"


def test_run_dependencies_as_tested_are_recorded_unless_forged() -> None:
    package = ResolvedPackage(
        scope="run",
        name="liba",
        version="1",
        build="0",
        sha256="ab" * 32,
        url="https://a.example/noarch/liba-1-0.conda",
    )
    forged = ResolvedPackage(scope="run", name="../b", version="1", build="0")
    tests = TestReport(package="a", verdict=TestVerdict.PASSED, run_packages=(package, forged))
    made = cast("Any", SimpleNamespace(tests=tests))
    assert [provenance._tested_dependency_identifiers(one) for one in provenance._tested_run_dependencies(made)] == [
        {"purl": "pkg:conda/liba@1?build=0", "url": package.url, "sha256": "ab" * 32}
    ]
