"""Expressions and templates of recipe.yaml: read by Jinja's parser, evaluated by walking their trees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2 import nodes

from kiln.recipe.v1.scope import compiler_or_stdlib_keys
from kiln.recipe.v1.values import (
    COMPARISONS,
    FILTERS,
    NOTHING,
    SIGNS,
    TESTS,
    InvalidOperation,
    Undefined,
    arithmetic_function,
    is_true,
    printed_text,
    require_defined,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kiln.recipe.v1.scope import VariantScope

    Step = Callable[[VariantScope], Any]


_OBJECTS = ("env", "git")  # whose methods rattler-build has


class MalformedExpression(Exception):
    """The text is not an expression or a template; ``line`` counts from 0 in the text."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(why)
        self.line = line


def node_evaluator(node: nodes.Node) -> Step:
    """Return the function that evaluates a node in a scope."""
    maker = _EVALUATOR_BY_NODE_TYPE.get(type(node))
    if maker is None:
        raise MalformedExpression(f"{type(node).__name__} is not supported", node.lineno - 1)
    return maker(node)


def _constant_evaluator(node: nodes.Const) -> Step:
    value = node.value
    return lambda _: value


def _name_evaluator(node: nodes.Name) -> Step:
    name = node.name
    return lambda scope: scope.value(name)


def _sequence_evaluator(node: nodes.List | nodes.Tuple) -> Step:
    parts = [node_evaluator(item) for item in node.items]
    return lambda scope: [part(scope) for part in parts]


def _mapping_evaluator(node: nodes.Dict) -> Step:
    pairs = [(node_evaluator(pair.key), node_evaluator(pair.value)) for pair in node.items]
    return lambda scope: {printed_text(key(scope)): value(scope) for key, value in pairs}


def _conditional_evaluator(node: nodes.CondExpr) -> Step:
    test, yes = node_evaluator(node.test), node_evaluator(node.expr1)
    no: Step = node_evaluator(node.expr2) if node.expr2 is not None else lambda _: NOTHING
    return lambda scope: yes(scope) if is_true(test(scope)) else no(scope)


def _and_or_evaluator(node: nodes.And | nodes.Or) -> Step:
    left, right = node_evaluator(node.left), node_evaluator(node.right)
    decisive = isinstance(node, nodes.Or)

    def evaluate_node(scope: VariantScope) -> Any:
        value = left(scope)
        return value if is_true(value) is decisive else right(scope)

    return evaluate_node


def _not_evaluator(node: nodes.Not) -> Step:
    operand = node_evaluator(node.node)
    return lambda scope: not is_true(operand(scope))


def _sign_evaluator(node: nodes.Neg | nodes.Pos) -> Step:
    operand, subtract = node_evaluator(node.node), arithmetic_function("sub")
    if isinstance(node, nodes.Pos):
        return operand
    return lambda scope: subtract(0, operand(scope))


def _arithmetic_evaluator(node: nodes.BinExpr) -> Step:
    left, right = node_evaluator(node.left), node_evaluator(node.right)
    run = arithmetic_function(type(node).__name__.lower())
    return lambda scope: run(left(scope), right(scope))


def _concatenation_evaluator(node: nodes.Concat) -> Step:
    parts = [node_evaluator(part) for part in node.nodes]
    return lambda scope: "".join([printed_text(part(scope)) for part in parts])


def _comparison_evaluator(node: nodes.Compare) -> Step:
    first = node_evaluator(node.expr)
    rest = [(COMPARISONS[SIGNS[operand.op]], node_evaluator(operand.expr)) for operand in node.ops]

    def evaluate_node(scope: VariantScope) -> bool:
        left = first(scope)
        for test, part in rest:
            right = part(scope)
            if not test(left, right):
                return False
            left = right
        return True

    return evaluate_node


def _filter_or_test_evaluator(node: nodes.Filter | nodes.Test) -> Step:
    kind, functions = ("filter", FILTERS) if isinstance(node, nodes.Filter) else ("test", TESTS)
    function = functions.get(node.name)
    if function is None or node.node is None:
        raise MalformedExpression(f"unknown {kind} {node.name!r}", node.lineno - 1)
    what = f"the {kind} {node.name!r}"
    value, (args, kwargs) = node_evaluator(node.node), _argument_evaluators(node)
    return lambda scope: _call_with_checked_arguments(function, what, [value, *args], kwargs, scope)


def _call_evaluator(node: nodes.Call) -> Step:
    name, (args, kwargs) = _called_function_name(node.node), _argument_evaluators(node)

    def evaluate_node(scope: VariantScope) -> Any:
        function = scope.function(name)
        if function is None:
            raise InvalidOperation(f"unknown function {name!r}")
        return _call_with_checked_arguments(function, f"{name}()", args, kwargs, scope)

    return evaluate_node


def _called_function_name(node: nodes.Expr) -> str:
    """Return the name of what is called: ``compiler``, or ``env.get``."""
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name in _OBJECTS:
        return f"{node.node.name}.{node.attr}"
    raise MalformedExpression("only functions can be called, values have no methods", node.lineno - 1)


def _argument_evaluators(node: nodes.Call | nodes.Filter | nodes.Test) -> tuple[list[Step], dict[str, Step]]:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        raise MalformedExpression("* and ** are not supported", node.lineno - 1)
    return [node_evaluator(arg) for arg in node.args], {str(arg.key): node_evaluator(arg.value) for arg in node.kwargs}


def _call_with_checked_arguments(
    function: Callable[..., Any], what: str, args: list[Step], kwargs: dict[str, Step], scope: VariantScope
) -> Any:
    values, named = [arg(scope) for arg in args], {key: arg(scope) for key, arg in kwargs.items()}
    try:
        return function(*values, **named)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise InvalidOperation(f"{what} does not take these arguments ({error})") from error


def _item_evaluator(node: nodes.Getitem | nodes.Getattr) -> Step:
    value = node_evaluator(node.node)
    if isinstance(node, nodes.Getattr):
        name = node.attr
        return lambda scope: _item_or_undefined(value(scope), name)
    if isinstance(node.arg, nodes.Slice):
        return _slice_evaluator(value, node.arg)
    index = node_evaluator(node.arg)
    return lambda scope: _item_or_undefined(value(scope), index(scope))


def _item_or_undefined(value: Any, index: Any) -> Any:
    try:
        return value[index] if isinstance(require_defined(value), (str, list, dict)) else Undefined(str(index))
    except (LookupError, TypeError):
        return Undefined(str(index))


def _slice_evaluator(value: Step, node: nodes.Slice) -> Step:
    bounds = [node_evaluator(bound) if bound is not None else None for bound in (node.start, node.stop, node.step)]

    def evaluate_node(scope: VariantScope) -> Any:
        items = require_defined(value(scope))
        try:
            return items[slice(*[bound(scope) if bound else None for bound in bounds])]
        except (TypeError, ValueError, LookupError) as error:
            raise InvalidOperation(f"a slice of {printed_text(items)}: {error}") from error

    return evaluate_node


_EVALUATOR_BY_NODE_TYPE: dict[type[nodes.Node], Callable[[Any], Step]] = {
    nodes.Const: _constant_evaluator,
    nodes.Name: _name_evaluator,
    nodes.List: _sequence_evaluator,
    nodes.Tuple: _sequence_evaluator,
    nodes.Dict: _mapping_evaluator,
    nodes.CondExpr: _conditional_evaluator,
    nodes.And: _and_or_evaluator,
    nodes.Or: _and_or_evaluator,
    nodes.Not: _not_evaluator,
    nodes.Neg: _sign_evaluator,
    nodes.Pos: _sign_evaluator,
    **dict.fromkeys(
        (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow), _arithmetic_evaluator
    ),
    nodes.Concat: _concatenation_evaluator,
    nodes.Compare: _comparison_evaluator,
    nodes.Filter: _filter_or_test_evaluator,
    nodes.Test: _filter_or_test_evaluator,
    nodes.Call: _call_evaluator,
    nodes.Getitem: _item_evaluator,
    nodes.Getattr: _item_evaluator,
}


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
    """Return the names without whose values a template cannot be rendered: no default, and not only compared."""
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
