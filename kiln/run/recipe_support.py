"""Refuse feedstocks that cannot be built, before anything is spent on them; a missing file of the recipe, too."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln import expand, limits, render
from kiln.errors import RecipeFault, UsageError, did_you_mean, raise_all
from kiln.matchspec_notation import package_name
from kiln.model.rattler_build_settings import OWN_ENGINE
from kiln.model.source_position import Place
from kiln.recipe_v1.format_detection import is_v1

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import RenderedConfig

LATE = "${{"  # of folders that only the build knows


def require_supported_recipe(feedstock: Feedstock, configs: Iterable[str], *, engine: str = OWN_ENGINE) -> None:
    """Refuse a feedstock whose recipe asks for what no build does.

    Raises:
        RecipeFault: with the file and the line.
        UsageError: the engine cannot read the recipe.
    """
    if not is_v1(feedstock):
        return
    if engine != OWN_ENGINE:
        raise UsageError(
            f"{engine} cannot build a recipe.yaml", why="it reads meta.yaml alone", hint=f"--engine {OWN_ENGINE}"
        )
    from kiln.run import unsupported_recipe_yaml_keys  # it imports the whole reader of recipe.yaml

    places = limits.run_bounded(lambda: unsupported_recipe_yaml_keys.check_keys_and_find_stagings(feedstock))
    for config in configs if places else ():
        _require_independent_stagings(render.render(feedstock, expand.read_config(feedstock, config)), places)


def _require_independent_stagings(rendered: RenderedConfig, places: Mapping[str, Place]) -> None:
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


def require_recipe_files(feedstock: Feedstock, renderings: Iterable[RenderedConfig]) -> None:
    """Require the scripts, patches and local sources that a recipe names.

    Raises:
        RecipeFault: with all missing files.
    """
    names = dict.fromkeys(
        (rendered.file, *pair) for rendered in renderings for pair in _paths_named_in_recipe(rendered)
    )
    missing = {(file, name): key for file, key, name in names if not _recipe_path_exists(feedstock.recipe, key, name)}
    raise_all(_missing_file_errors(feedstock, missing))


def _paths_named_in_recipe(rendered: RenderedConfig) -> Iterator[tuple[str, str]]:
    """Yield the paths that a build reads, relative to the recipe, each after the key that names it."""
    for source in rendered.sources:
        yield from (("source/path", path) for path in [source.path] if path is not None)
        yield from (("source/patches", patch) for patch in source.patches if LATE not in patch)
    scripts = (
        *(staging.script for staging in rendered.stagings),
        *(output.script for output in rendered.outputs if not output.skip),
    )
    yield from (("script", script.file) for script in scripts if script.file is not None)


def _recipe_path_exists(recipe: Path, key: str, name: str) -> bool:
    """Return whether a path exists: a source may be a folder."""
    path = recipe / name
    return path.exists() if key == "source/path" else path.is_file()


def _missing_file_errors(feedstock: Feedstock, missing: Mapping[tuple[str, str], str]) -> Iterator[RecipeFault]:
    files = sorted(path.name for path in feedstock.recipe.iterdir())
    for (file, name), key in missing.items():
        yield RecipeFault(
            f"{key}: {name!r} does not exist",
            at=_path_position_in_recipe(feedstock.root, file, name),
            why=f"paths are relative to the recipe's folder, {feedstock.recipe}",
            hint=did_you_mean(name, files) or f"add recipe/{name}, or correct its name",
        )


def _path_position_in_recipe(root: Path, file: str, name: str) -> Place:
    """Return the place of a path in the recipe; the recipe alone for a path that a template makes."""
    word = re.compile(rf"(?<![\w./-]){re.escape(name)}(?![\w./-])")
    lines = (root / file).read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        if match := word.search(line.partition(" #")[0]):
            return Place(file=file, line=number, column=match.start() + 1)
    return Place(file=file)
