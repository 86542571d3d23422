"""Check that kiln's builds honor all keys of a recipe.yaml, and find its staging outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.errors import RecipeFault, did_you_mean, raise_all
from kiln.recipe_script_launch_commands import COMMANDS
from kiln.recipe_v1.compiled_expression import is_template
from kiln.recipe_v1.node_evaluation import node_error, node_place
from kiln.recipe_v1.recipe import RecipeV1
from kiln.recipe_v1.unknown_keys import items_of_all_branches
from kiln.yamltext import PlacedText

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.model.feedstock import Feedstock
    from kiln.model.source_position import Place


def check_keys_and_find_stagings(feedstock: Feedstock) -> dict[str, Place]:
    """Return the places of a recipe's staging outputs, by name; refuse the recipe if no build honors its keys.

    Raises:
        RecipeFault: it has such keys, with the line of each.
    """
    recipe = RecipeV1.read(feedstock.recipe_v1)
    raise_all(_unsupported_key_errors(recipe.root))
    entries = recipe.root.get("outputs", ())
    named = [entry["staging"].get("name") for entry in entries if isinstance(entry.get("staging"), dict)]
    return {str(name): node_place(name) for name in named}


def _unsupported_key_errors(root: Any) -> Iterator[RecipeFault]:
    for entry in (root, *items_of_all_branches(root.get("outputs"))):
        if isinstance(entry, dict):
            yield from _script_errors(_nested_value(entry, "build", "script"))
            for test in items_of_all_branches(entry.get("tests")):
                yield from _test_script_errors(_nested_value(test, "script"))


def _test_script_errors(script: Any) -> Iterator[RecipeFault]:
    yield from _script_errors(script)
    for key in script if isinstance(script, dict) else ():
        if key == "secrets":
            yield node_error(
                key,
                "secrets of a test's script are not supported",
                why="tests run again wherever the package is tested, without the variables of its build",
                hint="remove them, or test with what a build script has written into the package",
            )


def _script_errors(script: Any) -> Iterator[RecipeFault]:
    interpreter = _nested_value(script, "interpreter")
    if isinstance(interpreter, PlacedText) and not is_template(interpreter) and interpreter not in COMMANDS:
        known = ", ".join(sorted(COMMANDS))
        yield node_error(
            interpreter,
            f"scripts for the interpreter {str(interpreter)!r} are not supported",
            hint=did_you_mean(str(interpreter), COMMANDS) or f"one of {known}",
        )


def _nested_value(node: Any, *keys: str) -> Any:
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node
