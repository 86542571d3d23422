"""The nodes of recipe.yaml with their places, evaluated in a scope: texts, conditional lists, mappings, scripts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kiln.base import files
from kiln.base.errors import RecipeFault, TemplateFault, did_you_mean, raise_all
from kiln.base.limits import errors
from kiln.base.patterns import lazy_pattern
from kiln.base.position import Place
from kiln.base.yaml import NULLS, PlacedText, is_integer, scalar_value
from kiln.recipe.v1.expressions import (
    CompiledExpression,
    MalformedExpression,
    compile_expression,
    compile_template,
    is_template,
)
from kiln.recipe.v1.values import NOTHING, InvalidOperation, is_true, printed_text, require_defined

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from kiln.recipe.v1.scope import VariantScope

    Result = TypeVar("Result")

RECIPE = "recipe/recipe.yaml"
_BRANCHES = frozenset({"if", "then", "else"})


def node_place(node: Any) -> Place:
    """Return where a node stands: for a mapping or a list, its first key or item."""
    while not isinstance(node, PlacedText):
        if not isinstance(node, (dict, list)) or not node:
            return Place(file=RECIPE)
        node = next(iter(node))
    return Place(file=RECIPE, line=node.line, column=node.column)


def node_error(node: Any, what: str, why: str = "", hint: str = "") -> RecipeFault:
    """Return the fault that a node has."""
    return RecipeFault(what, at=node_place(node), why=why, hint=hint)


def is_empty_node(node: Any) -> bool:
    """Return whether a node says nothing: YAML's null, an empty list, nothing at all."""
    return node is None or node in ([], {}) or (isinstance(node, PlacedText) and node.plain and node in NULLS)


# Scalars


def compile_scalar(node: PlacedText, compile_: Callable[[str], Result]) -> Result:
    """Return what a scalar's expression, template or script is compiled to."""
    try:
        return compile_(str(node))
    except MalformedExpression as error:
        at = Place(file=RECIPE, line=node.line + error.line, column=node.column)
        what, hint = f"malformed expression {str(node)[:80]!r}", "close all parentheses and quotes, without ${{ }}"
        if is_template(node):
            hint = "an expression is ${{ NAME }}, on one line and closed"
        raise TemplateFault(what, at=at, why=str(error), hint=hint) from error


def evaluate_scalar(
    node: PlacedText, what: CompiledExpression, scope: VariantScope, as_type: Callable[[Any], Result]
) -> Result:
    """Return the value of a scalar's expression or template, as ``as_type`` converts it."""
    errors.record_place(RECIPE, node.line)  # for the error of a process that is ended while it is at it
    try:
        return as_type(what.steps(scope))
    except (InvalidOperation, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise TemplateFault(
            f"{str(node)[:80]!r} cannot be evaluated",
            at=node_place(node),
            why=why,
            hint=_undefined_name_hint(node, what, scope),
        ) from error


def _undefined_name_hint(node: str, what: CompiledExpression, scope: VariantScope) -> str:
    """Return a hint for a name without a value that a scalar has written out."""
    known = scope.known_names()
    missing = sorted(name for name in what.names - known if name in node)
    for name in missing:  # python_min is no misspelled python
        if near := did_you_mean(name, [other for other in known if not name.startswith(f"{other}_")]):
            return near
    return f'give {missing[0]} a value in a variant file, or a default: {missing[0]} | default("")' if missing else ""


_BOA_SELECTOR = lazy_pattern(r"sel\((.+)\)")


def require_scalar(node: Any) -> PlacedText:
    """Return a node that is a scalar."""
    if isinstance(node, PlacedText):
        return node
    why, hint = f"a {'list' if isinstance(node, list) else 'mapping'} stands here", ""
    if isinstance(node, dict) and (match := _BOA_SELECTOR.fullmatch(str(next(iter(node), "")))):
        why = "it is a selector of boa's former recipe format"
        hint = f"write '- if: {match[1]}', and 'then: ...' below it"
    raise node_error(node, "a text is expected here", why=why, hint=hint)


def rendered_text(node: Any, scope: VariantScope) -> str:
    """Return the text that a scalar renders to."""
    source = require_scalar(node)
    if not is_template(source):
        return str(source)
    return evaluate_scalar(source, compile_scalar(source, compile_template), scope, printed_text)


def context_entry_value(node: Any, scope: VariantScope) -> Any:
    """Return the value that an entry of ``context`` has: an expression alone and unquoted keeps its type."""
    if isinstance(node, list):
        return [context_entry_value(item, scope) for item in node]
    source = require_scalar(node)
    if not is_template(source):
        return scalar_value(source)
    trimmed = PlacedText(source.strip(), source.line, source.column, plain=source.plain)
    what = compile_scalar(trimmed, compile_template)
    if not what.alone:
        return evaluate_scalar(source, what, scope, lambda value: _typed_value_of_text(printed_text(value)))
    value = evaluate_scalar(source, what, scope, require_defined if source.plain else printed_text)
    return "" if value is NOTHING else value


def _typed_value_of_text(value: str) -> Any:
    # What a template with more than one expression prints may still be a number or a truth value to rattler-build.
    word = value.strip()
    if word.lower() in {"true", "false"}:
        return word.lower() == "true"
    return int(word) if is_integer(word) else value


# Lists


def items_with_conditions_resolved(node: Any, scope: VariantScope) -> Iterator[Any]:
    """Yield the items of a list, or the one item that stands in its place, conditions resolved."""
    for item in node_as_list(node):
        if not _is_conditional(item):
            yield item
        elif condition_holds(item["if"], scope):
            yield from items_with_conditions_resolved(item.get("then"), scope)
        else:
            yield from items_with_conditions_resolved(item.get("else"), scope)


def node_as_list(node: Any) -> list[Any]:
    """Return the items of a node; one that is not a list is its only item."""
    return [] if is_empty_node(node) else node if isinstance(node, list) else [node]


def _is_conditional(item: Any) -> bool:
    if not isinstance(item, dict) or "if" not in item:
        return False
    require_known_keys(item, _BRANCHES, "a condition")
    if "then" not in item:
        raise node_error(item, "a condition has no 'then'")
    return True


def condition_holds(node: Any, scope: VariantScope) -> bool:
    """Return whether a condition holds."""
    source = require_scalar(node)
    return evaluate_scalar(source, compile_scalar(source, compile_expression), scope, is_true)


def rendered_texts(node: Any, scope: VariantScope) -> list[str]:
    """Return the texts of a conditional list, without empty ones."""
    return [result for item in items_with_conditions_resolved(node, scope) if (result := rendered_text(item, scope))]


def scalars_of_all_branches(node: Any) -> Iterator[tuple[PlacedText, bool]]:
    """Yield every scalar of a conditional list, of all branches, and the conditions; and whether it is a condition."""
    for item in node_as_list(node):
        if _is_conditional(item):
            yield require_scalar(item["if"]), True
            yield from scalars_of_all_branches(item.get("then"))
            yield from scalars_of_all_branches(item.get("else"))
        else:
            yield require_scalar(item), False


# Mappings


def require_mapping(node: Any, what: str) -> Mapping[str, Any]:
    """Return a node that is a mapping; an empty node is an empty one.

    Raises:
        RecipeFault: it is something else.
    """
    if is_empty_node(node):
        return {}
    if isinstance(node, dict):
        return node
    raise node_error(node, f"{what} is a mapping of keys", hint="write keys below it, one a line")


def require_known_keys(node: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    """Refuse keys that a mapping may not have, all at once."""
    raise_all(unknown_key_errors(node, known, what))


def unknown_key_errors(
    node: Mapping[str, Any], known: Iterable[str], what: str, hints: Mapping[str, str] | None = None
) -> list[RecipeFault]:
    """Return the faults of the keys that a mapping may not have; some have hints of their own."""
    names = set(known)
    return [unknown_key_error(key, names, what, (hints or {}).get(str(key), "")) for key in node if key not in names]


def unknown_key_error(key: Any, known: Collection[str], what: str, hint: str = "") -> RecipeFault:
    """Return the fault of a key that a mapping may not have; one of meta.yaml's has another name here."""
    near = hint or _of_meta_yaml().get(str(key)) or did_you_mean(str(key), known)
    return node_error(key, f"{what} has no key {str(key)!r}", hint=near or f"one of {', '.join(sorted(known))}")


@cache
def _of_meta_yaml() -> dict[str, str]:
    rows = files.csv_rows(Path(__file__).with_name("meta_keys.csv"))
    return {row["meta"]: f"{row['meta']} is meta.yaml's; here it is {row['recipe']}" for row in rows}
