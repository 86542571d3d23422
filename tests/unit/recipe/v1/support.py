"""Recipes for tests, and the packages that they make of a space of variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.recipe.v1.recipe import RecipeV1
from kiln.recipe.v1.variants import packages_with_variant_subspaces
from kiln.recipe.variants.space import Space

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from kiln.recipe.v1.recipe import PackageAtVariant

HEAD = "package:\n  name: p\n  version: '1'\n"


def recipe(folder: Path, text: str) -> RecipeV1:
    """Write a recipe and read it."""
    file = folder / "recipe.yaml"
    file.write_text(text)
    return RecipeV1.read(file)


def found(
    folder: Path, text: str, spec: dict[str, Any], target: str = "linux-64"
) -> list[tuple[Space, PackageAtVariant]]:
    """Return the packages that a recipe makes of a specification of variants."""
    return list(
        packages_with_variant_subspaces(
            recipe(folder, text), Space.from_spec({"target_platform": [target], **spec}), target
        )
    )


def one(folder: Path, text: str, spec: dict[str, Any] | None = None, target: str = "linux-64") -> PackageAtVariant:
    """Return the only package."""
    ((_, package),) = found(folder, text, spec or {}, target)
    return package
