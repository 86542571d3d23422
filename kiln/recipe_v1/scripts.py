"""The scripts of recipe.yaml: their lines, the names in these, and the variables of their environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.errors import TemplateFault
from kiln.recipe_v1.compiled_expression import compile_expression, is_template, names_in_script_line
from kiln.recipe_v1.node_evaluation import (
    compile_scalar,
    items_with_conditions_resolved,
    node_error,
    rendered_text,
    require_mapping,
    require_scalar,
    scalars_of_all_branches,
)

if TYPE_CHECKING:
    from kiln.recipe_v1.scope import VariantScope
    from kiln.recipe_v1.section_field_evaluators import Kind


def evaluate_environment(node: Any, scope: VariantScope) -> dict[str, str]:
    """Evaluate variables of a script's environment."""
    result = {str(key): rendered_text(value, scope) for key, value in require_mapping(node, "env").items()}
    for key, value in require_mapping(node, "env").items():
        if "\n" in result[str(key)]:
            raise node_error(value, f"the variable {str(key)!r} has a line break", hint="set it in the script")
    return {key: value for key, value in result.items() if value}


def unevaluated_script_lines(node: Any, scope: VariantScope) -> list[str]:
    """Take a script's lines: conditions are evaluated, expressions stay for the build, their names count as read."""
    for setting, is_condition in scalars_of_all_branches(node):
        if is_condition:
            scope.record_name_reads(compile_scalar(setting, compile_expression).names)
        elif is_template(setting):
            scope.record_name_reads(compile_scalar(setting, names_in_script_line))
    return [str(require_scalar(item)) for item in items_with_conditions_resolved(node, scope) if item]


def evaluate_test_script_lines(node: Any, scope: VariantScope) -> list[str]:
    """Evaluate the lines of a test's script; one that cannot be evaluated stays as it is."""
    unevaluated_script_lines(node, scope)  # for the names that they read
    return [_rendered_or_source_text(item, scope) for item in items_with_conditions_resolved(node, scope) if item]


def _rendered_or_source_text(item: Any, scope: VariantScope) -> str:
    try:
        return rendered_text(item, scope)
    except TemplateFault:
        return str(require_scalar(item))


def values_of_names_in_script(node: Any, scope: VariantScope) -> dict[str, Any]:
    """Return the values of the names in a script's expressions that the context or the variant gives."""
    lines = [line for line, _ in scalars_of_all_branches(node) if is_template(line)]
    names = frozenset[str]().union(*(compile_scalar(line, names_in_script_line) for line in lines))
    values = {name: scope.value(name) for name in sorted(names) if name in scope.context or name in scope.variant}
    return {name: value for name, value in values.items() if isinstance(value, str | int | list)}


@dataclass(frozen=True, slots=True)
class ScriptSchema:
    """The kind of a script: its settings, or its lines alone, with the values of the names in their expressions.

    The field ``bare`` is set for lines alone, which may be the name of a file.
    """

    of_mapping: Kind
    content: Kind

    def __call__(self, node: Any, scope: VariantScope) -> dict[str, Any]:
        """Evaluate the script."""
        if isinstance(node, dict) and "if" not in node:
            fields, of_lines = self.of_mapping(node, scope), node.get("content")
        else:
            fields, of_lines = {"content": self.content(node, scope), "bare": True}, node
        return {**fields, "names": values_of_names_in_script(of_lines, scope)}
