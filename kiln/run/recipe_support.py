"""Refuse feedstocks that cannot be built, before anything is spent on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import expand, limits, render
from kiln.errors import RecipeFault, UsageError
from kiln.matchspec_notation import package_name
from kiln.model.engine_package_settings import OWN_ENGINE
from kiln.model.source_position import Place
from kiln.recipe_v1.node_evaluation import place
from kiln.recipe_v1.recipe import RecipeV1
from kiln.recipe_v1.recipe_format import is_v1
from kiln.recipe_v1.unsupported_features import require_buildable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import RenderedConfig


def require(feedstock: Feedstock, configs: Iterable[str], *, engine: str = OWN_ENGINE) -> None:
    """Refuse a feedstock whose recipe asks for what no build does.

    Raises:
        RecipeFault: with the file and the line.
        UsageError: the engine cannot read the recipe.
    """
    if not limits.run_bounded(lambda: is_v1(feedstock)):
        return
    if engine != OWN_ENGINE:
        raise UsageError(
            f"{engine} cannot build a recipe.yaml", why="it reads meta.yaml alone", hint=f"--engine {OWN_ENGINE}"
        )
    places = limits.run_bounded(lambda: _staging_outputs(feedstock))
    for config in configs if places else ():
        _require_staged_first(render.render(feedstock, expand.read(feedstock, config)), places)


def _staging_outputs(feedstock: Feedstock) -> dict[str, Place]:
    """Return the places of a recipe's staging outputs, by name; refuse the recipe if no build honors its keys."""
    recipe = RecipeV1.read(feedstock.recipe_v1)
    require_buildable(recipe)
    entries = recipe.root.get("outputs", ())
    named = [entry["staging"].get("name") for entry in entries if isinstance(entry.get("staging"), dict)]
    return {str(name): place(name) for name in named}


def _require_staged_first(rendered: RenderedConfig, places: Mapping[str, Place]) -> None:
    """Refuse staging outputs that require packages of the same recipe, since they are built before all of these."""
    names = {output.name for output in rendered.outputs}
    for staging in rendered.stagings:
        needs = staging.requirements
        if own := sorted(names & {package_name(spec) for spec in (*needs.build, *needs.host)}):
            raise RecipeFault(
                f"the staging output {staging.name} requires {own[0]}, a package of this recipe",
                at=next(
                    (at for name, at in places.items() if staging.name.startswith(name)), Place(file=rendered.file)
                ),
                why="staging outputs are built before all packages",
                hint=f"build {own[0]} in a feedstock of its own, or in the staging output",
            )
