"""Expressions and templates of recipe.yaml: read by Jinja's parser, with the names that they may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import jinja2
from jinja2 import nodes

from kiln.recipe_v1.expression_evaluation import MalformedExpression, node_evaluator
from kiln.recipe_v1.minijinja_value_operations import is_true, printed_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kiln.recipe_v1.expression_evaluation import Step
    from kiln.recipe_v1.scope import VariantScope

START = "${{"
_LONGEST = 100_000
_TOOLS = ("compiler", "stdlib")
_GUARDS = frozenset({"default", "defined", "undefined"})  # filters and tests for names that may have no value
_PARSER = jinja2.Environment(variable_start_string=START, autoescape=False)  # noqa: S701 - nothing is rendered by it
_OF_SCRIPTS = jinja2.Environment(autoescape=False)  # noqa: S701 - as above


@dataclass(frozen=True, slots=True)
class CompiledExpression:
    """An expression or template: its steps, and every name that it may ask for, in whichever branch."""

    steps: Step
    names: frozenset[str]
    alone: bool = False  # a template that is one expression, whose value keeps its type


def is_template(source: str) -> bool:
    """Return whether a text holds an expression."""
    return START in source


@lru_cache(maxsize=8192)
def compile_expression(source: str) -> CompiledExpression:
    """Compile an expression, as conditions and ``skip`` are.

    Raises:
        MalformedExpression: it is not one.
    """
    if is_template(source):
        raise MalformedExpression(f"an expression stands without {START} and }}}} here")
    result = compile_template(f"{START} {source} }}}}")
    if not result.alone:
        raise MalformedExpression("one expression is expected")
    return result


@lru_cache(maxsize=8192)
def compile_template(source: str) -> CompiledExpression:
    """Compile a text with expressions in it.

    Raises:
        MalformedExpression: it is malformed, or has a statement other than ``if``.
    """
    try:
        tree = _parsed_template_nodes(source)
        names = frozenset(name for node in tree for name in _names_in_node(node))
        if len(tree) == 1 and isinstance(tree[0], nodes.Expr) and not isinstance(tree[0], nodes.TemplateData):
            return CompiledExpression(node_evaluator(tree[0]), names, alone=True)
        return CompiledExpression(_compile_text_function(tree), names)
    except RecursionError as error:
        raise MalformedExpression("nested too deeply") from error


@lru_cache(maxsize=8192)
def names_in_script_line(source: str) -> frozenset[str]:
    """Return the names that a line of a script asks for: it is rendered by the build, where statements may stand, too.

    As rattler-build does, expressions count with and without a dollar sign, and what macros hold does not.

    Raises:
        MalformedExpression: it is malformed.
    """
    try:
        return frozenset(_names_in_statements(_parse_template(_OF_SCRIPTS, source)))
    except RecursionError as error:
        raise MalformedExpression("nested too deeply") from error


def _names_in_statements(body: Iterable[nodes.Node]) -> Iterator[str]:
    for node in body:
        if isinstance(node, nodes.Output):
            yield from (name for part in node.nodes for name in _names_in_node(part))
        elif isinstance(node, nodes.If):
            yield from _names_in_node(node.test)
            yield from _names_in_statements((*node.body, *node.elif_, *node.else_))
        elif isinstance(node, nodes.For):
            yield from _names_in_node(node.iter)
            yield from _names_in_statements((*node.body, *node.else_))
        elif isinstance(node, nodes.Assign):
            yield from _names_in_node(node.node)


def _parsed_template_nodes(source: str) -> list[nodes.Node]:
    return list(_flattened_nodes(_parse_template(_PARSER, source)))


def _parse_template(parser: jinja2.Environment, source: str) -> list[nodes.Node]:
    if len(source) > _LONGEST:
        raise MalformedExpression(f"an expression of {len(source):,} characters")
    try:
        return parser.parse(source).body
    except jinja2.TemplateSyntaxError as error:
        raise MalformedExpression(error.message or "malformed", error.lineno - 1) from error
    except ValueError as error:
        raise MalformedExpression(str(error)) from error


def _flattened_nodes(body: Iterable[nodes.Node]) -> Iterator[nodes.Node]:
    """Yield the expressions, texts and statements of a template."""
    for node in body:
        if isinstance(node, nodes.Output):
            yield from node.nodes
        elif isinstance(node, nodes.If):
            yield node
        else:
            raise MalformedExpression(f"the statement {type(node).__name__.lower()} is not supported", node.lineno - 1)


def _compile_text_function(body: Iterable[nodes.Node]) -> Callable[[VariantScope], str]:
    steps = [_compile_text_piece(node) for node in body]
    return lambda scope: "".join([step(scope) for step in steps])


def _compile_text_piece(node: nodes.Node) -> Callable[[VariantScope], str]:
    if isinstance(node, nodes.TemplateData):
        data = node.data
        return lambda _: data
    if isinstance(node, nodes.If):
        return _compile_if(node)
    step = node_evaluator(node)
    return lambda scope: printed_text(step(scope))


def _compile_if(node: nodes.If) -> Callable[[VariantScope], str]:
    """Return the text of ``{% if %}``: that of the first branch whose test holds, or of the last one."""
    tests = [
        (node_evaluator(entry.test), _compile_text_function(_flattened_nodes(entry.body)))
        for entry in (node, *node.elif_)
    ]
    last = _compile_text_function(_flattened_nodes(node.else_))
    return lambda scope: next((body for test, body in tests if is_true(test(scope))), last)(scope)


# Names


def _names_in_node(node: nodes.Node) -> Iterator[str]:
    """Yield every name that a node may ask for; ``compiler("c")`` asks for keys of the variant."""
    if isinstance(node, nodes.Name):
        yield node.name
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name):
        yield from _variant_keys_of_call(node.node.name, node.args)
        for child in (*node.args, *node.kwargs):
            yield from _names_in_node(child)
        return
    for child in node.iter_child_nodes():
        yield from _names_in_node(child)


def required_names(source: str) -> frozenset[str]:
    """Return the names without whose values a template cannot be rendered: no default, and not only compared.

    Raises:
        MalformedExpression: it is malformed.
    """
    try:
        return frozenset(name for node in _parsed_template_nodes(source) for name in _required_names_in_node(node))
    except RecursionError as error:
        raise MalformedExpression("nested too deeply") from error


def _required_names_in_node(node: nodes.Node) -> Iterator[str]:
    if isinstance(node, nodes.Name):
        yield node.name
    elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name):
        if node.node.name == "stdlib":
            yield from (name for name in _variant_keys_of_call("stdlib", node.args) if name.endswith("_stdlib"))
        for child in () if node.node.name == "match" else node.args:
            yield from _required_names_in_node(child)
    elif isinstance(node, (nodes.Filter, nodes.Test)) and node.name in _GUARDS:
        return
    else:
        compared = node.test if isinstance(node, (nodes.CondExpr, nodes.If)) else None
        yield from (
            name
            for child in node.iter_child_nodes()
            if child is not compared
            for name in _required_names_in_node(child)
        )


def _variant_keys_of_call(function: str, args: list[nodes.Expr]) -> Iterator[str]:
    first = args[0] if args else None
    if function in _TOOLS and isinstance(first, nodes.Const):
        yield from compiler_or_stdlib_keys(str(first.value), function)
    elif function == "cdt":
        yield from ("cdt_name", "cdt_arch")


def compiler_or_stdlib_keys(language: str, kind: str) -> tuple[str, str, str]:
    """Return the variant keys that ``compiler()`` or ``stdlib()`` asks for."""
    return f"{language}_{kind}", f"{language}_{kind}_version", "CONDA_BUILD_SYSROOT"
