"""Render a cell of a feedstock into its outputs, as conda-build does before a solver has chosen any package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import RecipeFault
from kiln.model.rendered import Rendered
from kiln.recipe.recipe import Recipe
from kiln.recipe.source import RecipeSource
from kiln.render.open_pins import marker, pins_of
from kiln.render.parts import compile_step, output, sources, texts
from kiln.variants.combine import combine
from kiln.variants.files import Source, as_list, variant_file
from kiln.variants.platform import Platform
from kiln.variants.space import filtered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kiln.model.cell import Cell
    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import Output
    from kiln.recipe.metadata import Metadata
    from kiln.template.names import Doubts

_GIVEN = ("docker_image",)  # what kiln itself puts into a cell's file
_SHARED: dict[tuple[object, ...], RecipeSource] = {}


def render(feedstock: Feedstock, cell: Cell) -> Rendered:
    """Every output of a cell, in the order in which they can be built.

    Bounds that depend on other outputs or on a solver stay open, as in conda-build's own unfinalised rendering;
    ``finalise`` closes those that need no solver.

    Raises:
        KilnError: the recipe or a variant file is at fault.
    """
    system, _, arch = cell.platform.partition("-")
    platform = Platform(system=system, arch=arch)
    files = [variant_file(path, f"recipe/{path.name}") for path in [_config(feedstock)] if path.is_file()]
    keys = frozenset[str]().union(*(file.keys for file in files))
    alone = keys.union(platform.defaults(), _GIVEN) >= cell.variant.keys()
    source = _source(feedstock, keys.union(cell.variant), alone=alone)
    own = Source(name=f".ci_support/{cell.name}.yaml", values=_values(cell))
    given = [*(file.source(platform, source.known) for file in files), own]
    defaults = Source(name="defaults", values=platform.defaults())
    space = filtered(combine([defaults, *given]), [source.values for source in given])
    recipe = Recipe(source, platform, space)
    packages = list(_distinct(recipe))
    if not all(package.name for package in packages):
        raise RecipeFault("a package has no name", at=recipe.place("package"), hint="name: of package or output")
    open_ends = Recipe(source, platform, space, marker) if "pin_" in source.text.text else None
    return _rendered(cell, recipe, packages, open_ends)


def _config(feedstock: Feedstock) -> Path:
    return feedstock.recipe / "conda_build_config.yaml"


def _values(cell: Cell) -> dict[str, object]:
    values: dict[str, object] = {key: list(items) for key, items in cell.variant.items()}
    if cell.zip_keys:
        values["zip_keys"] = [list(group) for group in cell.zip_keys]
    if cell.pin_run_as_build:
        values["pin_run_as_build"] = dict(cell.pin_run_as_build)
    return values


def _source(feedstock: Feedstock, known: frozenset[str], *, alone: bool) -> RecipeSource:
    """The recipe's text, shared between the cells of one process while neither it nor the known names change.

    A cell's file holds the keys that its outputs use; others that the recipe tests may stand in a pinning that is not
    here. Unless the feedstock stands ``alone`` there is one, and not even a near miss need be a mistake.
    """
    known |= _neighbours(feedstock)
    status = feedstock.meta.stat()
    key = (feedstock.meta, status.st_mtime_ns, status.st_size, known, alone)
    found = _SHARED.get(key)
    if found is None:
        _SHARED.clear()
        doubts: Doubts | None = None if alone else {}
        found = RecipeSource(feedstock.meta, "recipe/meta.yaml", known, all_known=False, doubts=doubts)
        _SHARED[key] = found
    return found


def _neighbours(feedstock: Feedstock) -> frozenset[str]:
    """The keys that other cells have, which may be missing from this one without being a mistake."""
    files = [*feedstock.configs.glob("*.yaml"), *(feedstock.configs / "migrations").glob("*.yaml")]
    return frozenset[str]().union(*(variant_file(path, path.name).keys for path in files))


def _distinct(recipe: Recipe) -> Iterator[Metadata]:
    found: dict[object, Metadata] = {}
    for _, packages in recipe.jobs():
        for package in packages:
            if package.kind in {None, "conda", "conda_v2"}:
                choice = recipe.choice(package.variant, package.used())
                found[(package.dist, package.variant.get("target_platform"), choice)] = package
    yield from found.values()


def _rendered(cell: Cell, recipe: Recipe, packages: list[Metadata], open_ends: Recipe | None) -> Rendered:
    if not packages:
        return Rendered(cell=cell)
    loops = sorted(recipe.space.loops)
    outputs = [_output(package, loops, open_ends) for package in packages]
    top = recipe.top(packages[0].variant)
    script, requirements = compile_step(top)
    return Rendered(
        cell=cell,
        name=top.name,
        version=top.version,
        build_number=top.build_number,
        sources=sources(top),
        compile=script,
        compile_requirements=requirements,
        compile_script_env=texts(top.value("build", "script_env")),
        outputs=tuple(outputs),
        network=granted(top),
    )


def granted(top: Metadata) -> tuple[str, ...]:
    """Return the steps whose scripts may reach the network: ``extra: network:``, a name or a list of names."""
    extra = top.values.get("extra")
    named = extra.get("network") if isinstance(extra, dict) else None
    return tuple(str(step) for step in as_list(named) if step)


def _output(package: Metadata, loops: list[str], open_ends: Recipe | None) -> Output:
    variant = {key: str(package.variant[key]) for key in loops}
    pins = pins_of(package, open_ends) if open_ends else ()
    return output(package, variant=variant, pins=pins)
