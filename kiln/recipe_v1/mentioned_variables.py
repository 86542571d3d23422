"""The names that a recipe.yaml writes down anywhere, in whichever branch, and where: what it may ask a variant for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.recipe_v1.compiled_expression import compile_expression, is_template, needed, script_names
from kiln.recipe_v1.expression_evaluation import MalformedExpression
from kiln.recipe_v1.node_evaluation import place
from kiln.recipe_v1.requirement import canonical_spec, free_name
from kiln.recipe_v1.scope import LATE, platform_names
from kiln.recipe_v1.scope import variant_key as normalized_name
from kiln.yamltext import PlacedText

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Any

    from kiln.model.source_position import Place
    from kiln.recipe_v1.recipe import RecipeV1

_CONDITIONS = ("if", "skip")
_SCRIPTS = ("script", "content")


def mentioned_keys(recipe: RecipeV1) -> dict[str, Place]:
    """Return every key that a recipe may ask a variant for, and where it first stands."""
    own = _own(recipe)
    result: dict[str, Place] = {}
    for name, node in _named(recipe.root, ""):
        if name not in own:
            result.setdefault(name, place(node))
    return result


def required_keys(recipe: RecipeV1) -> dict[str, Place]:
    """Return the keys that a recipe cannot be evaluated without: written out, not compared or with a default.

    What stands in a script is the build's own affair, and a condition may be one of other platforms.
    """
    own = _own(recipe)
    result: dict[str, Place] = {}
    for node in templates(recipe.root, {"context"}):
        for name in _needed(node) - own:
            result.setdefault(name, place(node))
    return result


def _own(recipe: RecipeV1) -> set[str]:
    """Return the names that have a value, or get one, without any variant."""
    return {*map(str, recipe.context), *platform_names("linux-64", "linux-64"), *LATE, "hash", "build_number"}


def _named(node: Any, key: str) -> Iterator[tuple[str, PlacedText]]:
    """Yield each name with the scalar in which it stands."""
    if isinstance(node, dict):
        for inner, value in node.items():
            yield from _named(value, key if inner in {"then", "else"} else str(inner))
    elif isinstance(node, list):
        for item in node:
            yield from _named(item, key)
    elif isinstance(node, PlacedText):
        yield from ((name, node) for name in _names_of(node, key))


def _names_of(node: PlacedText, key: str) -> frozenset[str]:
    try:
        if is_template(node):
            return script_names(str(node))  # which takes what any template may hold
        if key in _CONDITIONS:
            return compile_expression(str(node)).names
    except MalformedExpression:
        return frozenset()  # whoever evaluates it says what is wrong, and where
    bare = _bare(node) if key in {"build", "host"} else ""
    return frozenset({normalized_name(bare)}) if bare else frozenset()


def _bare(node: PlacedText) -> str:
    try:
        return free_name(canonical_spec(node))
    except ValueError:
        return ""


def templates(node: Any, apart: Collection[str]) -> Iterator[PlacedText]:
    """Yield the scalars that are templates, but those in scripts and below the keys that are ``apart``."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key not in _SCRIPTS and key not in apart:
                yield from templates(value, apart)
    elif isinstance(node, list):
        for item in node:
            yield from templates(item, apart)
    elif isinstance(node, PlacedText) and is_template(node):
        yield node


def _needed(node: PlacedText) -> frozenset[str]:
    try:
        return needed(str(node))
    except MalformedExpression:
        return frozenset()  # as above
