"""The names that a recipe.yaml writes down anywhere, in whichever branch, and where: what it may ask a variant for."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from kiln.errors import SelectorFault
from kiln.recipe_v1.compiled_expression import compile_expression, is_template, names_in_script_line, required_names
from kiln.recipe_v1.expression_evaluation import MalformedExpression
from kiln.recipe_v1.node_evaluation import node_place
from kiln.recipe_v1.requirement import canonical_spec, name_of_bare_requirement
from kiln.recipe_v1.scope import LATE, platform_names
from kiln.recipe_v1.scope import variant_key_of_name as normalized_name
from kiln.yamltext import PlacedText

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from kiln.model.source_position import Place
    from kiln.recipe_v1.recipe import RecipeV1

_CONDITIONS = ("if", "skip")
_SCRIPTS = ("script", "content")
_OWN_NAMES = ("context", "extra")  # sections whose keys are the feedstock's own


def mentioned_variant_keys(recipe: RecipeV1) -> dict[str, Place]:
    """Return every key that a recipe may ask a variant for, and where it first stands."""
    own = _names_independent_of_variant(recipe)
    result: dict[str, Place] = {}
    for name, node in _names_with_scalars(recipe.root, ""):
        if name not in own:
            result.setdefault(name, node_place(node))
    return result


def required_variant_keys(recipe: RecipeV1) -> dict[str, Place]:
    """Return the keys that a recipe cannot be evaluated without: written out, not compared or with a default.

    What stands in a script is the build's own affair, and a condition may be one of other platforms.
    """
    own = _names_independent_of_variant(recipe)
    result: dict[str, Place] = {}
    for node in templates_outside_scripts(recipe.root, {"context"}):
        with contextlib.suppress(MalformedExpression):  # whoever evaluates it says what is wrong, and where
            for name in required_names(str(node)) - own:
                result.setdefault(name, node_place(node))
    return result


def _names_independent_of_variant(recipe: RecipeV1) -> set[str]:
    """Return the names that have a value, or get one, without any variant."""
    return {*map(str, recipe.context), *platform_names("linux-64", "linux-64"), *LATE, "hash", "build_number"}


def _names_with_scalars(node: Any, key: str) -> Iterator[tuple[str, PlacedText]]:
    """Yield each name with the scalar in which it stands."""
    if isinstance(node, dict):
        for inner, value in node.items():
            yield from _names_with_scalars(value, key if inner in {"then", "else"} else str(inner))
    elif isinstance(node, list):
        for item in node:
            yield from _names_with_scalars(item, key)
    elif isinstance(node, PlacedText):
        yield from ((name, node) for name in _names_in_scalar(node, key))


def _names_in_scalar(node: PlacedText, key: str) -> frozenset[str]:
    try:
        if is_template(node):
            return names_in_script_line(str(node))  # which takes what any template may hold
        if key in _CONDITIONS:
            return compile_expression(str(node)).names
        bare = name_of_bare_requirement(canonical_spec(node)) if key in {"build", "host"} else ""
    except (MalformedExpression, ValueError):  # the latter by an invalid requirement
        return frozenset()  # as above
    return frozenset({normalized_name(bare)}) if bare else frozenset()


def malformed_conditions(node: Any, key: str = "") -> Iterator[tuple[PlacedText, MalformedExpression, bool]]:
    """Yield each malformed condition with its fault, and whether it is one of ``skip``, which then does not hold."""
    if isinstance(node, dict):
        for inner, value in node.items():
            if inner not in _OWN_NAMES:
                yield from malformed_conditions(value, key if inner in {"then", "else"} else str(inner))
    elif isinstance(node, list):
        for item in node:
            yield from malformed_conditions(item, key)
    elif isinstance(node, PlacedText) and key in _CONDITIONS and node and not is_template(node):
        try:
            compile_expression(str(node))
        except MalformedExpression as error:
            yield node, error, key == "skip"


def malformed_skip_warnings(root: Mapping[str, Any]) -> dict[Place, SelectorFault]:
    """Return a warning for each malformed condition of ``skip``, by its place."""
    return {
        (at := node_place(node)): SelectorFault(
            f"the condition {str(node)[:80]!r} of skip is malformed, so nothing is skipped by it",
            at=at,
            why=f"{error}; rattler-build takes it for false",
            hint="correct it; kiln lint fails until then",
        )
        for node, error, skips in malformed_conditions(root)
        if skips
    }


def templates_outside_scripts(node: Any, apart: Collection[str]) -> Iterator[PlacedText]:
    """Yield the scalars that are templates, but those in scripts and below the keys that are ``apart``."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key not in _SCRIPTS and key not in apart:
                yield from templates_outside_scripts(value, apart)
    elif isinstance(node, list):
        for item in node:
            yield from templates_outside_scripts(item, apart)
    elif isinstance(node, PlacedText) and is_template(node):
        yield node
