from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln import feedstock_folder_check
from kiln.errors import FeedstockNotFound

if TYPE_CHECKING:
    from pathlib import Path


def test_a_feedstock_is_found_by_its_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "meta.yaml").touch()
    assert feedstock_folder_check.load(tmp_path).meta == tmp_path / "recipe" / "meta.yaml"


def test_a_folder_inside_a_feedstock_names_it(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "meta.yaml").touch()
    with pytest.raises(FeedstockNotFound) as caught:
        feedstock_folder_check.load(tmp_path / "recipe")
    assert caught.value.hint == f"-C {tmp_path}"


def test_a_feedstock_is_found_by_its_recipe_in_the_other_format(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "recipe.yaml").touch()
    assert feedstock_folder_check.load(tmp_path).recipe_v1 == tmp_path / "recipe" / "recipe.yaml"


def test_a_folder_without_a_recipe_names_both_formats(tmp_path: Path) -> None:
    with pytest.raises(FeedstockNotFound) as caught:
        feedstock_folder_check.load(tmp_path)
    assert caught.value.why == "it has neither recipe/meta.yaml nor recipe/recipe.yaml"
