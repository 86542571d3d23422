"""A feedstock is made again from a package and its record: whatever the layout, and nothing outside of its folder."""

from __future__ import annotations

import hashlib
import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln.base.errors import BrokenPackage, NotWritable, ProvenanceBroken
from kiln.conda.provenance.contents import LicenseFile
from kiln.conda.provenance.records import ExternalRepository, ResolvedPackage
from kiln.publish import provenance
from kiln.recipe.feedstock import BuildConfig, Feedstock
from kiln.recipe.rendered import Checkout, RenderedConfig, Source, Staging
from kiln.state.store.cache import recipe_digest
from tests import builders, publishing
from tests.packages import conda_package, release_package

if TYPE_CHECKING:
    from pathlib import Path


RECIPE = {"meta.yaml": "package: {name: {{ name }}}\n", "build.sh": "make\n", "src/a.txt": "a"}
VARIANT = "recipe/conda_build_config.yaml"


def feedstock(root: Path, recipe: dict[str, str], *, variants: str = "") -> Feedstock:
    """Write a feedstock."""
    texts = {f"recipe/{name}": text for name, text in recipe.items()}
    texts |= {"conda-forge.yml": "provider: {}\n", ".ci_support/one.yaml": "python: ['3.12']\n"}
    texts |= {VARIANT: variants} if variants else {}
    builders.write_files(root, texts)
    return Feedstock(root=root)


def package(folder: Path, recipe: dict[str, str]) -> Path:
    index = {"name": "a", "version": "1", "build": "0", "build_number": 0, "subdir": "noarch", "depends": []}
    return conda_package(folder / "a-1-0.conda", {"index.json": index, "about.json": {}, **recipe})


def record(made_from: Feedstock, **changed: Any) -> dict[str, Any]:
    return {"config": "one", "feedstock_files": provenance.read_feedstock_files_to_record(made_from, "one"), **changed}


LAYOUTS: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "an output": (
        RECIPE,
        {f"recipe/parent/{name}": text for name, text in RECIPE.items()} | {"recipe/meta.yaml": "x"},
        "",
    ),
    "a package alone": (
        RECIPE,
        {
            "recipe/meta.yaml": "rendered",
            "recipe/meta.yaml.template": RECIPE["meta.yaml"],
            "recipe/conda_build_config.yaml": "all values of the variant",
            "recipe/build.sh": RECIPE["build.sh"],
            "recipe/src/a.txt": "a",
        },
        "python: ['3.12']\n",
    ),
    "recipe.yaml": (
        {"recipe.yaml": "package: {}", "variants.yaml": "python: []"},
        {
            "recipe/recipe.yaml": "package: {}",
            "recipe/variants.yaml": "python: []",
            "recipe/rendered_recipe.yaml": "x",
            "recipe/variant_config.yaml": "x",
        },
        "",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_feedstock_is_made_again_with_the_hash_of_its_recipe(layout: str, tmp_path: Path) -> None:
    recipe, carried, variants = LAYOUTS[layout]
    before = feedstock(tmp_path / "before", recipe, variants=variants)
    again = provenance.restore_feedstock(package(tmp_path, carried), record(before), tmp_path / "again")
    assert recipe_digest(again) == recipe_digest(before)
    assert all(os.access(path, os.X_OK) == (path.suffix == ".sh") for path in again.recipe.glob("*.*"))
    assert (again.config_folder / "one.yaml").read_text() == (before.config_folder / "one.yaml").read_text()


def test_only_a_new_folder_is_written(tmp_path: Path) -> None:
    before = feedstock(tmp_path / "before", RECIPE)
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "mine").write_text("mine")
    made = package(tmp_path, LAYOUTS["an output"][1])
    with pytest.raises(NotWritable):
        provenance.restore_feedstock(made, record(before), tmp_path / "again")
    assert [file.name for file in (tmp_path / "again").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "changed",
    [
        {"feedstock_files": None},
        {"feedstock_files": {}},
        {"feedstock_files": {".ci_support/one.yaml": 7}},
        {"feedstock_files": {".ci_support/one.yaml": "", "../escape": ""}},
        {"feedstock_files": {".ci_support/one.yaml": "", "recipe/build.sh": "rm -rf /"}},
        {"config": "../one", "feedstock_files": {".ci_support/../one.yaml": ""}},
        {"config": None},
    ],
)
def test_a_record_that_lacks_files_or_has_others_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    before = feedstock(tmp_path / "before", RECIPE)
    made = package(tmp_path, LAYOUTS["an output"][1])
    with pytest.raises(ProvenanceBroken):
        provenance.restore_feedstock(made, record(before, **changed), tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    "name",
    ["recipe/parent/../../../escape", "recipe/parent//etc/escape", "recipe/parent/a\\..\\b", "recipe/parent/C:x"],
)
def test_a_path_that_leads_out_of_the_recipe_is_refused(tmp_path: Path, name: str) -> None:
    before = feedstock(tmp_path / "before", RECIPE)
    made = package(tmp_path, {**LAYOUTS["an output"][1], name: "x"})
    with pytest.raises(BrokenPackage, match="leads out of it"):
        provenance.restore_feedstock(made, record(before), tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_package_without_a_recipe_is_told(tmp_path: Path) -> None:
    before = feedstock(tmp_path / "before", RECIPE)
    with pytest.raises(BrokenPackage, match="carries no recipe"):
        provenance.restore_feedstock(package(tmp_path, {}), record(before), tmp_path / "again")


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


def test_both_bills_list_license_files_and_run_dependencies_unless_forged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = release_package(tmp_path, "a", payload={"share/a/NOTICE.txt": b"of others"})
    monkeypatch.setattr(
        provenance, "provenance_record", lambda *_, **__: publishing.record("a-1-0.conda", license="CC0-1.0")
    )
    monkeypatch.setattr(provenance, "recipe_digest", lambda _: "ab")
    tested = [ResolvedPackage(scope="run", name=name, version="1", build="0") for name in ("liba", "../b")]
    made = SimpleNamespace(tests=SimpleNamespace(run_packages=tested), repositories=())
    monkeypatch.setattr(provenance, "recorded_build_of_candidate", lambda *_: (None, None, made))
    candidate = cast("Any", SimpleNamespace(path=package, contents=SimpleNamespace(about={})))
    attestation = provenance.release_provenance_and_attestations(
        cast("Any", SimpleNamespace(feedstock=None)), [candidate]
    )
    (documents,) = attestation.documents.values()
    statement, spdx, cyclonedx = documents.values()
    digests = [file["digest"]["sha256"] for file in json.loads(statement)["predicate"]["runDetails"]["byproducts"]]
    assert digests == [hashlib.sha256(bill).hexdigest() for bill in (spdx, cyclonedx)]
    assert {"liba", "../b"} & {one["name"] for one in json.loads(spdx)["packages"]} == {"liba"}
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
