"""Load a feedstock from disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import FeedstockNotFound
from kiln.model.feedstock import Feedstock
from kiln.model.source_position import Place

if TYPE_CHECKING:
    from pathlib import Path


def load(root: Path) -> Feedstock:
    """Return the feedstock at ``root``.

    Raises:
        FeedstockNotFound: the folder has neither ``recipe/meta.yaml`` nor ``recipe/recipe.yaml``.
    """
    feedstock = Feedstock(root=root.absolute())
    if _has_recipe(feedstock):
        return feedstock
    reason = "no such folder" if not root.is_dir() else "it has neither recipe/meta.yaml nor recipe/recipe.yaml"
    parent = next((parent for parent in feedstock.root.parents if _has_recipe(Feedstock(root=parent))), None)
    hint = f"-C {parent}" if parent else "name the feedstock's folder with -C, or make one: kiln init NAME"
    raise FeedstockNotFound("not a feedstock", at=Place(file=str(root)), why=reason, hint=hint)


def _has_recipe(feedstock: Feedstock) -> bool:
    return feedstock.meta.is_file() or feedstock.recipe_v1.is_file()
