"""Rules for what makes a recipe invalid: types of values, unknown and repeated keys, malformed expressions.

conda-smithy has no message for most wrong types, and stops with a Python error instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.errors import did_you_mean
from kiln.lint.located_yaml import branch_items, list_or_empty
from kiln.lint.rule_model import Problem, lint_rule
from kiln.recipe_v1.compiled_expression import compile_template
from kiln.recipe_v1.expression_evaluation import MalformedExpression
from kiln.recipe_v1.mentioned_variables import malformed_conditions, templates_outside_scripts
from kiln.recipe_v1.unknown_keys import unknown_keys
from kiln.serialization import mapping_or_empty

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kiln.lint.linted_feedstock import LintedFeedstock

_RECIPE_SECTIONS = ("context", "package", "recipe", "build", "requirements", "about", "extra", "cache")
_RECIPE_LISTS = ("outputs", "tests")
_OUTPUT_SECTIONS = ("build", "about")
_KINDS = ("build", "host", "run", "run_constrained", "run_constraints")
_SHAPES: dict[type, tuple[str, str]] = {
    dict: ("a mapping", "write 'key: value' below it"),
    list: ("a list", "write one '- item' a line"),
}


def wrong_value_types(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield sections that are not mappings or lists, and requirements that are not lists of texts."""
    recipe = subject.recipe
    if recipe.version:
        yield from _wrong_shape_problems(subject, recipe.root, _RECIPE_SECTIONS, dict)
        yield from _wrong_shape_problems(subject, recipe.root, _RECIPE_LISTS, list)
    for section in ("source", "outputs"):
        for entry in _entries_of_section(subject, section):
            if entry is not None and not isinstance(entry, dict):
                text = f"an entry of {section} is {_shape_description(entry)}, expected a mapping"
                yield Problem(text=text, at=recipe.place_of_key(recipe.root, section))
    for output in recipe.outputs:
        sections = (*_OUTPUT_SECTIONS, "package" if recipe.version else "test")
        yield from _wrong_shape_problems(subject, output, sections, dict)
    for holder in (recipe.root, *recipe.outputs):
        value = holder.get("requirements")
        requirements = {"run": value} if isinstance(value, list) and holder is not recipe.root else value
        yield from _requirement_type_problems(subject, mapping_or_empty(requirements))
        if recipe.version == 0:
            yield from _command_type_problems(subject, holder)


def _command_type_problems(subject: LintedFeedstock, holder: Mapping[Any, Any]) -> Iterator[Problem]:
    """Yield commands with a colon that YAML reads as mappings."""
    for section, key in (("test", "commands"), ("build", "script")):
        for item in list_or_empty(mapping_or_empty(holder.get(section)).get(key)):
            if isinstance(item, dict):
                text = f"an entry of {section}/{key} is a mapping, expected text"
                yield Problem(text=text, at=subject.recipe.place_of(item), cure="quote the entry")


def _entries_of_section(subject: LintedFeedstock, section: str) -> list[Any]:
    value = subject.recipe.root.get(section)
    if subject.recipe.version:
        return list(branch_items(value))
    return [] if isinstance(value, dict) else list_or_empty(value)


def _wrong_shape_problems(
    subject: LintedFeedstock, holder: Mapping[Any, Any], names: tuple[str, ...], expected: type
) -> Iterator[Problem]:
    """Yield the values of these keys that are not of the expected type."""
    word, cure = _SHAPES[expected]
    for name in names:
        value = holder.get(name)
        if value is not None and not isinstance(value, expected):
            text = f"{name} is {_shape_description(value)}, expected {word}"
            yield Problem(text=text, at=subject.recipe.place_of_key(holder, name), cure=cure)


def _requirement_type_problems(subject: LintedFeedstock, requirements: Mapping[Any, Any]) -> Iterator[Problem]:
    recipe = subject.recipe
    if recipe.version == 0:
        yield from _wrong_shape_problems(subject, requirements, _KINDS, list)
    for kind in _KINDS:
        value = requirements.get(kind)
        for item in (branch_items(value) if recipe.version else list_or_empty(value)) if value is not None else ():
            # In recipe.yaml, pins may be mappings.
            if item is not None and not isinstance(item, (str, dict) if recipe.version else str):
                text = f"an entry of requirements/{kind} is {_shape_description(item)}, expected text"
                yield Problem(text=text, at=recipe.place_of_key(requirements, kind), cure="quote the entry")


def _shape_description(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    return f"the text {str(value)!r}" if isinstance(value, str) else f"the value {value!r}"


def unknown_v1_keys(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield the keys of a recipe.yaml that its sections do not have, so that rattler-build refuses the recipe."""
    recipe = subject.recipe
    for unknown in unknown_keys(recipe.root) if recipe.version else ():
        text = f"{unknown.section} has no key {str(unknown.key)!r}"
        yield Problem(text=text, at=recipe.place_of(unknown.key), cure=did_you_mean(str(unknown.key), unknown.known))


def repeated_keys(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield keys that a mapping has twice, with which a recipe is not built."""
    recipe = subject.recipe
    for key in recipe.repeated_keys:
        yield Problem(
            text=f"duplicate key {str(key)!r}: the later value would override the earlier one", at=recipe.place_of(key)
        )


def malformed_expressions(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield texts of a recipe.yaml whose expressions rattler-build cannot read; scripts are rendered by the build."""
    recipe = subject.recipe
    for text in templates_outside_scripts(recipe.root, ()) if recipe.version else ():
        try:
            compile_template(str(text))
        except MalformedExpression as error:
            at = recipe.place_of_line(text.line + error.line, text.column)
            yield Problem(text=f"malformed expression {str(text)[:80]!r}: {error}", at=at)
    for text, fault, _ in malformed_conditions(recipe.root) if recipe.version else ():
        at = recipe.place_of_line(text.line + fault.line, text.column)
        cure = "a condition is an expression without ${{ }}, its parentheses closed"
        yield Problem(text=f"malformed condition {str(text)[:80]!r}: {fault}", at=at, cure=cure)


RULES = (lint_rule("kiln-type", wrong_value_types, "write a mapping"),)
KEY_RULES = (
    lint_rule("kiln-key", unknown_v1_keys, "remove the key"),
    lint_rule("kiln-duplicate", repeated_keys, "keep one of them, or put them under selectors that exclude each other"),
    lint_rule("kiln-template", malformed_expressions, "an expression is ${{ NAME }}, on one line and closed"),
)
