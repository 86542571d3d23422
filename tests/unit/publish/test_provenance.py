"""A feedstock is made again from a package and its record: whatever the layout, and nothing outside of its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BrokenPackage, NotWritable, ProvenanceBroken
from kiln.publish import provenance
from kiln.recipe.feedstock import Feedstock
from kiln.state.store.cache import recipe_digest
from tests.packages import conda_package

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = {"meta.yaml": "package: {name: {{ name }}}\n", "build.sh": "make\n", "src/a.txt": "a"}
VARIANT = "recipe/conda_build_config.yaml"


def feedstock(root: Path, recipe: dict[str, str], *, variants: str = "") -> Feedstock:
    """Write a feedstock."""
    texts = {f"recipe/{name}": text for name, text in recipe.items()}
    texts |= {"conda-forge.yml": "provider: {}\n", ".ci_support/one.yaml": "python: ['3.12']\n"}
    texts |= {VARIANT: variants} if variants else {}
    for name, text in texts.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return Feedstock(root=root)


def package(folder: Path, recipe: dict[str, str]) -> Path:
    index = {"name": "a", "version": "1", "build": "0", "build_number": 0, "subdir": "noarch", "depends": []}
    return conda_package(folder / "a-1-0.conda", {"index.json": index, "about.json": {}, **recipe})


def record(made_from: Feedstock, **changed: Any) -> dict[str, Any]:
    return {
        "config": "one",
        "feedstock_files": provenance.read_feedstock_files_to_record(made_from, "one"),
        **changed,
    }


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
