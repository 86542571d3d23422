"""The packages of a recipe over all variants, evaluated once for each combination of keys that matters to them.

A package is evaluated at one variant of a part of the space. What it reads there decides how the part is divided: by
the values of the first key that it read and that still varies. So the cost grows with the packages that differ, not
with the product of everything that varies; a key that is read in one branch alone divides that branch alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.errors import RecipeFault
from kiln.model.source_position import Place
from kiln.recipe_v1.hash_inputs_and_build_strings import exactly_pinned_output_names
from kiln.recipe_v1.node_evaluation import RECIPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kiln.recipe_v1.recipe import PackageAtVariant, RecipeV1
    from kiln.variants.space import Space

    KeysOfPackage = Callable[[PackageAtVariant], frozenset[str]]

_MOST = 20_000  # evaluations of one platform


class RecipePackages:
    """The packages of a recipe over the variants of a space; ``words`` is as in the scope."""

    def __init__(self, recipe: RecipeV1, space: Space, target: str, build: str, *, words: bool = False) -> None:
        self._recipe = recipe
        self._space = space
        self._platforms = (target, build)
        self._words = words
        self._evaluated: dict[tuple[int, tuple[Any, ...]], PackageAtVariant] = {}
        self._loops = sorted(space.varying_keys)
        self._remaining_evaluations = _MOST

    def packages(self, keys_of: KeysOfPackage | None = None) -> Iterator[PackageAtVariant]:
        """Yield every package that is not skipped, in the recipe's order, for all values of the keys of ``keys_of``.

        By default these are the keys that it depends on, by way of what it pins exactly, too.

        Raises:
            KilnError: the recipe is at fault.
        """
        for index in range(self._recipe.package_count):
            yield from self._packages_divided_by_keys(index, self._space, keys_of or self._keys_package_depends_on)

    def pinned_package(self, by: PackageAtVariant, name: str) -> PackageAtVariant:
        """Return the package of a name that belongs to the same variant as another one.

        Raises:
            RecipeFault: none exists.
        """
        indexes = range(self._recipe.package_count)
        for index in indexes:
            result = self._cached_package(index, by.scope.variant)
            if result.name.lower() == name and not result.skip:
                return result
        every = (
            other
            for index in indexes
            for other in self._packages_divided_by_keys(index, self._space, _read_and_hashed_keys)
        )
        if others := [other for other in every if other.name.lower() == name]:
            return max(others, key=lambda other: self._shared_value_count(by, other))
        raise by.placed_error(f"{by.name} pins {name!r} with pin_subpackage, but the config has no such output")

    def _shared_value_count(self, one: PackageAtVariant, other: PackageAtVariant) -> int:
        return sum(one.scope.variant.get(key) == other.scope.variant.get(key) for key in self._loops)

    def _cached_package(self, index: int, variant: Mapping[str, Any]) -> PackageAtVariant:
        """Return a package at a variant, evaluated once.

        Raises:
            RecipeFault: no evaluation is left.
        """
        key = (index, tuple(variant.get(loop) for loop in self._loops))
        result = self._evaluated.get(key)
        if result is None:
            self._remaining_evaluations -= 1
            if self._remaining_evaluations < 0:
                why = f"the packages differ at more than {_MOST:,} combinations of keys"
                hint = "zip keys that belong together with zip_keys"
                raise RecipeFault("the matrix explodes", at=Place(file=RECIPE), why=why, hint=hint)
            scope = self._recipe.scope_at_variant(variant, *self._platforms, words=self._words)
            result = self._evaluated[key] = self._recipe.package_at_variant(index, scope)
        return result

    def _packages_divided_by_keys(self, index: int, space: Space, keys_of: KeysOfPackage) -> Iterator[PackageAtVariant]:
        package = self._cached_package(index, space.first_variant())
        key = min(keys_of(package) & space.varying_keys, default=None)
        if key is not None:
            for part in _subspaces_by_value(space, key):
                yield from self._packages_divided_by_keys(index, part, keys_of)
        elif not package.skip:
            yield package

    def _keys_package_depends_on(self, package: PackageAtVariant) -> frozenset[str]:
        """Return the keys that a package depends on, by way of what it pins exactly, too."""
        keys: set[str] = set()
        names, todo = {package.name.lower()}, [package]
        while todo:
            item = todo.pop()
            keys |= _read_and_hashed_keys(item)
            for name in () if item.skip else exactly_pinned_output_names(item):
                if name not in names:
                    names.add(name)
                    todo.append(self.pinned_package(item, name))
        return frozenset(keys)


def packages_with_variant_subspaces(
    recipe: RecipeV1, space: Space, target: str
) -> Iterator[tuple[Space, PackageAtVariant]]:
    """Yield every package with the part of the space that it is for; skipped ones are left out.

    The platform builds for itself here, as it does when conda-smithy asks rattler-build for the keys.

    Raises:
        KilnError: the recipe is at fault.
    """
    packages = RecipePackages(recipe, space, target, target, words=True)
    for package in packages.packages(lambda item: item.used | item.scope.reads):
        part = space
        for key in sorted(package.used & space.varying_keys):
            part = part.where(key, [package.scope.variant[key]])
        yield part, package


def _read_and_hashed_keys(package: PackageAtVariant) -> frozenset[str]:
    """Return the keys that a package reads and hashes itself."""
    return package.hashed | package.scope.reads


def _subspaces_by_value(space: Space, key: str) -> Iterator[Space]:
    """Yield the parts of a space in which a key has one value."""
    dimension = space.dimension(key)
    for value in dimension.values(key) if dimension else ():
        yield space.where(key, [value])
