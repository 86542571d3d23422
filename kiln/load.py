"""Find a feedstock on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import FeedstockNotFound
from kiln.model.feedstock import Feedstock
from kiln.model.place import Place

if TYPE_CHECKING:
    from pathlib import Path


def find(root: Path) -> Feedstock:
    """The feedstock at ``root``.

    Raises:
        FeedstockNotFound: the folder has no ``recipe/meta.yaml``.
    """
    feedstock = Feedstock(root=root.absolute())
    if feedstock.meta.is_file():
        return feedstock
    missing = "no such folder" if not root.is_dir() else "it has no recipe/meta.yaml"
    above = next((parent for parent in feedstock.root.parents if (parent / "recipe" / "meta.yaml").is_file()), None)
    hint = f"-C {above}" if above else "name the feedstock's folder with -C"
    if (root / "recipe" / "recipe.yaml").is_file():
        hint = "recipe.yaml is a format that kiln does not read; it reads meta.yaml"
    raise FeedstockNotFound("not a feedstock", at=Place(file=str(root)), why=missing, hint=hint)
