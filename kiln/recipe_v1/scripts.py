"""The scripts of recipe.yaml: their lines, the names in these, and the variables of their environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import TemplateFault
from kiln.recipe_v1.compiled_expression import compile_expression, is_template
from kiln.recipe_v1.node_evaluation import (
    all_scalars,
    compiled,
    fault,
    items,
    names_of_script,
    require_mapping,
    require_scalar,
    text_of,
)

if TYPE_CHECKING:
    from typing import Any

    from kiln.recipe_v1.scope import VariantScope


def environment(node: Any, scope: VariantScope) -> dict[str, str]:
    """Evaluate variables of a script's environment."""
    result = {str(key): text_of(value, scope) for key, value in require_mapping(node, "env").items()}
    for key, value in require_mapping(node, "env").items():
        if "\n" in result[str(key)]:
            raise fault(value, f"the variable {str(key)!r} has a line break", hint="set it in the script")
    return {key: value for key, value in result.items() if value}


def lines(node: Any, scope: VariantScope) -> list[str]:
    """Take a script's lines: conditions are evaluated, expressions stay for the build, their names count as read."""
    for setting in all_scalars(node):
        if is_template(setting):
            record_reads(names_of_script(setting), scope)
    _read_conditions(node, scope)
    return [str(require_scalar(item)) for item in items(node, scope) if item]


def tested_lines(node: Any, scope: VariantScope) -> list[str]:
    """Evaluate the lines of a test's script; one that cannot be evaluated stays as it is."""
    lines(node, scope)  # for the names that they read
    return [_text_or_source(item, scope) for item in items(node, scope) if item]


def _text_or_source(item: Any, scope: VariantScope) -> str:
    try:
        return text_of(item, scope)
    except TemplateFault:
        return str(require_scalar(item))


def _read_conditions(node: Any, scope: VariantScope) -> None:
    for item in node if isinstance(node, list) else [node]:
        if isinstance(item, dict) and "if" in item:
            record_reads(compiled(require_scalar(item["if"]), compile_expression).names, scope)
            _read_conditions(item.get("then"), scope)
            _read_conditions(item.get("else"), scope)


def record_reads(names: frozenset[str], scope: VariantScope) -> None:
    """Record that names are read."""
    for name in names:
        scope.read_hidden(name)


def values_of_names(node: Any, scope: VariantScope) -> dict[str, Any]:
    """Return the values of the names in a script's expressions that the context or the variant gives."""
    lines = [line for line in all_scalars(node) if is_template(line)]
    names = frozenset[str]().union(*map(names_of_script, lines))
    values = {name: scope.value(name) for name in sorted(names) if name in scope.context or name in scope.variant}
    return {name: value for name, value in values.items() if isinstance(value, str | int | list)}
