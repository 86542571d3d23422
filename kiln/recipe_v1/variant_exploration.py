"""The packages of a recipe over all variants, evaluated once for each combination of keys that matters to them.

A package is evaluated at one variant of a part of the space. What it reads there decides how the part is divided: by
the values of the first key that it read and that still varies. So the cost grows with the packages that differ, not
with the product of everything that varies; a key that is read in one branch alone divides that branch alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import RecipeFault
from kiln.model.source_position import Place
from kiln.recipe_v1.identity import exact_pins
from kiln.recipe_v1.node_evaluation import RECIPE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from kiln.recipe_v1.recipe import PackageAtVariant, RecipeV1
    from kiln.variants.space import Space

_MOST = 20_000  # evaluations of one platform


class ConfigPackages:
    """All packages of a recipe for a config: what an output pins exactly divides it as well as what it reads."""

    def __init__(self, recipe: RecipeV1, space: Space, target: str, build: str) -> None:
        self._recipe = recipe
        self._space = space
        self._platforms = (target, build)
        self._at: dict[tuple[int, tuple[Any, ...]], PackageAtVariant] = {}
        self._loops = sorted(space.varying_keys)
        self._budget = [_MOST]

    def packages(self) -> Iterator[PackageAtVariant]:
        """Yield every package that is not skipped, in the recipe's order.

        Raises:
            KilnError: the recipe is at fault.
        """
        for index in range(self._recipe.package_count):
            yield from self._packages_divided_by_keys(index, self._space)

    def pinned_package(self, by: PackageAtVariant, name: str) -> PackageAtVariant:
        """Return the package of a name that belongs to the same variant as another one.

        Raises:
            RecipeFault: none exists.
        """
        for index in range(self._recipe.package_count):
            result = self._cached_package(index, by.scope.variant)
            if result.name.lower() == name and not result.skip:
                return result
        indexes = range(self._recipe.package_count)
        every = (
            other for index in indexes for other in self._packages_divided_by_keys(index, self._space, by_pins=False)
        )
        if others := [other for other in every if other.name.lower() == name]:
            return max(others, key=lambda other: self._shared_value_count(by, other))
        raise by.placed_error(f"{by.name} pins {name!r} with pin_subpackage, but the config has no such output")

    def _shared_value_count(self, one: PackageAtVariant, other: PackageAtVariant) -> int:
        return sum(one.scope.variant.get(key) == other.scope.variant.get(key) for key in self._loops)

    def _cached_package(self, index: int, variant: Mapping[str, Any]) -> PackageAtVariant:
        key = (index, tuple(variant.get(loop) for loop in self._loops))
        result = self._at.get(key)
        if result is None:
            _spend_evaluation_budget(self._budget)
            result = self._at[key] = self._recipe.package(index, variant, *self._platforms)
        return result

    def _packages_divided_by_keys(
        self, index: int, space: Space, *, by_pins: bool = True
    ) -> Iterator[PackageAtVariant]:
        package = self._cached_package(index, space.first_variant())
        keys = self._keys_package_depends_on(package) if by_pins else package.scope.reads | package.hashed
        key = min(keys & space.varying_keys, default=None)
        if key is not None:
            for part in _subspaces_by_value(space, key):
                yield from self._packages_divided_by_keys(index, part, by_pins=by_pins)
        elif not package.skip:
            yield package

    def _keys_package_depends_on(self, package: PackageAtVariant) -> frozenset[str]:
        """Return the keys that a package depends on, by way of what it pins exactly, too."""
        keys: set[str] = set()
        names, todo = {package.name.lower()}, [package]
        while todo:
            item = todo.pop()
            keys |= item.scope.reads | item.hashed
            for name in () if item.skip else exact_pins(item):
                if name not in names:
                    names.add(name)
                    todo.append(self.pinned_package(item, name))
        return frozenset(keys)


def packages_with_spaces(recipe: RecipeV1, space: Space, target: str) -> Iterator[tuple[Space, PackageAtVariant]]:
    """Yield every package with the part of the space that it is for; skipped ones are left out.

    The platform builds for itself here, as it does when conda-smithy asks rattler-build for the keys.

    Raises:
        KilnError: the recipe is at fault.
    """
    budget = [_MOST]
    for index in range(recipe.package_count):
        for package in _explored_packages(recipe, index, space, (target, target), budget):
            yield _space_of_package(space, package), package


def _space_of_package(space: Space, package: PackageAtVariant) -> Space:
    """Return the part of the space that has a package's values of the keys that it uses."""
    variant = package.scope.variant
    for key in sorted(package.used & space.varying_keys):
        space = space.where(key, [variant[key]])
    return space


def _explored_packages(
    recipe: RecipeV1, index: int, space: Space, platforms: tuple[str, str], budget: list[int]
) -> Iterator[PackageAtVariant]:
    _spend_evaluation_budget(budget)
    package = recipe.package(index, space.first_variant(), *platforms, words=True)
    key = min((package.scope.reads | package.used) & space.varying_keys, default=None)
    if key is not None:
        for part in _subspaces_by_value(space, key):
            yield from _explored_packages(recipe, index, part, platforms, budget)
    elif not package.skip:
        yield package


def _spend_evaluation_budget(budget: list[int]) -> None:
    """Spend one evaluation.

    Raises:
        RecipeFault: none is left.
    """
    budget[0] -= 1
    if budget[0] < 0:
        why = f"the packages differ at more than {_MOST:,} combinations of keys"
        hint = "zip keys that belong together with zip_keys"
        raise RecipeFault("the matrix explodes", at=Place(file=RECIPE), why=why, hint=hint)


def _subspaces_by_value(space: Space, key: str) -> Iterator[Space]:
    """Yield the parts of a space in which a key has one value."""
    dimension = space.dimension(key)
    for value in dimension.values(key) if dimension else ():
        yield space.where(key, [value])
