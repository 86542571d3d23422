"""Expressions and templates of recipe.yaml, evaluated by walking their syntax trees: no code of a recipe is compiled.

Jinja's parser reads them; what an expression may do is what rattler-build's minijinja lets it do: names, literals,
arithmetic, comparisons, the filters and tests of `filters`, and calls of the functions that its scope has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import jinja2
from jinja2 import nodes

from kiln.recipe_v1.filters import FILTERS, TESTS
from kiln.recipe_v1.values import NOTHING, Invalid, Undefined, arithmetic, contains, defined, equal, is_true, less, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Protocol

    class Scope(Protocol):
        """The scope of an expression: values by name, and functions by name."""

        def value(self, name: str) -> Any:
            """Return the value of a name, which may be undefined."""

        def function(self, name: str) -> Callable[..., Any] | None:
            """Return the function of a name, if there is one."""

    Step = Callable[[Scope], Any]

START = "${{"
_LONGEST = 100_000
_TOOLS = ("compiler", "stdlib")
_OBJECTS = ("env", "git")  # whose methods rattler-build has
_GUARDS = frozenset({"default", "defined", "undefined"})  # filters and tests for names that may have no value
_PARSER = jinja2.Environment(variable_start_string=START, autoescape=False)  # noqa: S701 - nothing is rendered by it
_OF_SCRIPTS = jinja2.Environment(autoescape=False)  # noqa: S701 - as above


class Malformed(Exception):
    """The text is not an expression or a template; ``line`` counts from 0 in the text."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(why)
        self.line = line


@dataclass(frozen=True, slots=True)
class Compiled:
    """An expression or template: its steps, and every name that it may ask for, in whichever branch."""

    steps: Step
    names: frozenset[str]
    alone: bool = False  # a template that is one expression, whose value keeps its type


def is_template(source: str) -> bool:
    """Return whether a text holds an expression."""
    return START in source


@lru_cache(maxsize=8192)
def expression(source: str) -> Compiled:
    """Compile an expression, as conditions and ``skip`` are.

    Raises:
        Malformed: it is not one.
    """
    if is_template(source):
        raise Malformed(f"an expression stands without {START} and }}}} here")
    result = _compiled(f"{START} {source} }}}}")
    if not result.alone:
        raise Malformed("one expression is expected")
    return result


@lru_cache(maxsize=8192)
def template(source: str) -> Compiled:
    """Compile a text with expressions in it.

    Raises:
        Malformed: it is malformed, or has a statement other than ``if``.
    """
    return _compiled(source)


@lru_cache(maxsize=8192)
def script_names(source: str) -> frozenset[str]:
    """Return the names that a line of a script asks for: it is rendered by the build, where statements may stand, too.

    As rattler-build does, expressions count with and without a dollar sign, and what macros hold does not.

    Raises:
        Malformed: it is malformed.
    """
    try:
        return frozenset(_names_of_body(_tree(_OF_SCRIPTS, source)))
    except RecursionError as error:
        raise Malformed("nested too deeply") from error


def _names_of_body(body: Iterable[nodes.Node]) -> Iterator[str]:
    for node in body:
        if isinstance(node, nodes.Output):
            yield from (name for part in node.nodes for name in _names(part))
        elif isinstance(node, nodes.If):
            yield from _names(node.test)
            yield from _names_of_body((*node.body, *node.elif_, *node.else_))
        elif isinstance(node, nodes.For):
            yield from _names(node.iter)
            yield from _names_of_body((*node.body, *node.else_))
        elif isinstance(node, nodes.Assign):
            yield from _names(node.node)


def _compiled(source: str) -> Compiled:
    try:
        return _of_tree(_parsed(source))
    except RecursionError as error:
        raise Malformed("nested too deeply") from error


def _of_tree(tree: list[nodes.Node]) -> Compiled:
    names = frozenset(name for node in tree for name in _names(node))
    if len(tree) == 1 and isinstance(tree[0], nodes.Expr) and not isinstance(tree[0], nodes.TemplateData):
        return Compiled(_step(tree[0]), names, alone=True)
    return Compiled(_text(tree), names)


def _parsed(source: str) -> list[nodes.Node]:
    return list(_flat(_tree(_PARSER, source)))


def _tree(parser: jinja2.Environment, source: str) -> list[nodes.Node]:
    if len(source) > _LONGEST:
        raise Malformed(f"an expression of {len(source):,} characters")
    try:
        return parser.parse(source).body
    except jinja2.TemplateSyntaxError as error:
        raise Malformed(error.message or "malformed", error.lineno - 1) from error
    except ValueError as error:
        raise Malformed(str(error)) from error


def _flat(body: Iterable[nodes.Node]) -> Iterator[nodes.Node]:
    """Yield the expressions, texts and statements of a template."""
    for node in body:
        if isinstance(node, nodes.Output):
            yield from node.nodes
        elif isinstance(node, nodes.If):
            yield node
        else:
            raise Malformed(f"the statement {type(node).__name__.lower()} is not supported", node.lineno - 1)


def _text(body: Iterable[nodes.Node]) -> Callable[[Scope], str]:
    steps = [_piece(node) for node in body]
    return lambda scope: "".join([step(scope) for step in steps])


def _piece(node: nodes.Node) -> Callable[[Scope], str]:
    if isinstance(node, nodes.TemplateData):
        data = node.data
        return lambda _: data
    if isinstance(node, nodes.If):
        return _branches(node)
    step = _step(node)
    return lambda scope: text(step(scope))


def _branches(node: nodes.If) -> Callable[[Scope], str]:
    """Return the text of ``{% if %}``: that of the first branch whose test holds, or of the last one."""
    tests = [(_step(entry.test), _text(_flat(entry.body))) for entry in (node, *node.elif_)]
    last = _text(_flat(node.else_))

    def run(scope: Scope) -> str:
        return next((body for test, body in tests if is_true(test(scope))), last)(scope)

    return run


# Names


def _names(node: nodes.Node) -> Iterator[str]:
    """Yield every name that a node may ask for; ``compiler("c")`` asks for keys of the variant."""
    if isinstance(node, nodes.Name):
        yield node.name
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name):
        yield from _keys(node.node.name, node.args)
        for child in (*node.args, *node.kwargs):
            yield from _names(child)
        return
    for child in node.iter_child_nodes():
        yield from _names(child)


def needed(source: str) -> frozenset[str]:
    """Return the names without whose values a template cannot be rendered: no default, and not only compared.

    Raises:
        Malformed: it is malformed.
    """
    try:
        return frozenset(name for node in _parsed(source) for name in _needed(node))
    except RecursionError as error:
        raise Malformed("nested too deeply") from error


def _needed(node: nodes.Node) -> Iterator[str]:
    if isinstance(node, nodes.Name):
        yield node.name
    elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name):
        if node.node.name == "stdlib":
            yield from (name for name in _keys("stdlib", node.args) if name.endswith("_stdlib"))
        for child in () if node.node.name == "match" else node.args:
            yield from _needed(child)
    elif isinstance(node, (nodes.Filter, nodes.Test)) and node.name in _GUARDS:
        return
    else:
        compared = node.test if isinstance(node, (nodes.CondExpr, nodes.If)) else None
        yield from (name for child in node.iter_child_nodes() if child is not compared for name in _needed(child))


def _keys(function: str, args: list[nodes.Expr]) -> Iterator[str]:
    first = args[0] if args else None
    if function in _TOOLS and isinstance(first, nodes.Const):
        yield from tool_keys(str(first.value), function)
    elif function == "cdt":
        yield from ("cdt_name", "cdt_arch")


def tool_keys(language: str, kind: str) -> tuple[str, str, str]:
    """Return the variant keys that ``compiler()`` or ``stdlib()`` asks for."""
    return f"{language}_{kind}", f"{language}_{kind}_version", "CONDA_BUILD_SYSROOT"


# Steps


def _step(node: nodes.Node) -> Step:
    maker = _MAKERS.get(type(node))
    if maker is None:
        raise Malformed(f"{type(node).__name__} is not supported", node.lineno - 1)
    return maker(node)


def _constant(node: nodes.Const) -> Step:
    value = node.value
    return lambda _: value


def _name(node: nodes.Name) -> Step:
    name = node.name
    return lambda scope: scope.value(name)


def _sequence(node: nodes.List | nodes.Tuple) -> Step:
    parts = [_step(item) for item in node.items]
    return lambda scope: [part(scope) for part in parts]


def _mapping(node: nodes.Dict) -> Step:
    pairs = [(_step(pair.key), _step(pair.value)) for pair in node.items]
    return lambda scope: {text(key(scope)): value(scope) for key, value in pairs}


def _choice(node: nodes.CondExpr) -> Step:
    test, yes = _step(node.test), _step(node.expr1)
    no: Step = _step(node.expr2) if node.expr2 is not None else lambda _: NOTHING
    return lambda scope: yes(scope) if is_true(test(scope)) else no(scope)


def _and(node: nodes.And) -> Step:
    left, right = _step(node.left), _step(node.right)

    def run(scope: Scope) -> Any:
        value = left(scope)
        return right(scope) if is_true(value) else value

    return run


def _or(node: nodes.Or) -> Step:
    left, right = _step(node.left), _step(node.right)

    def run(scope: Scope) -> Any:
        value = left(scope)
        return value if is_true(value) else right(scope)

    return run


def _not(node: nodes.Not) -> Step:
    operand = _step(node.node)
    return lambda scope: not is_true(operand(scope))


def _sign(node: nodes.Neg | nodes.Pos) -> Step:
    operand, subtract = _step(node.node), arithmetic("sub")
    if isinstance(node, nodes.Pos):
        return operand
    return lambda scope: subtract(0, operand(scope))


def _binary(node: nodes.BinExpr) -> Step:
    left, right, run = _step(node.left), _step(node.right), arithmetic(_OPERATORS[type(node)])
    return lambda scope: run(left(scope), right(scope))


def _concat(node: nodes.Concat) -> Step:
    parts = [_step(part) for part in node.nodes]
    return lambda scope: "".join([text(part(scope)) for part in parts])


def _compare(node: nodes.Compare) -> Step:
    first = _step(node.expr)
    rest = [(_COMPARISONS[operand.op], _step(operand.expr)) for operand in node.ops]

    def run(scope: Scope) -> bool:
        left = first(scope)
        for test, part in rest:
            right = part(scope)
            if not test(left, right):
                return False
            left = right
        return True

    return run


def _filter(node: nodes.Filter) -> Step:
    function = FILTERS.get(node.name)
    if function is None or node.node is None:
        raise Malformed(f"there is no filter {node.name!r}", node.lineno - 1)
    return _applied(function, f"the filter {node.name!r}", node)


def _test(node: nodes.Test) -> Step:
    function = TESTS.get(node.name)
    if function is None:
        raise Malformed(f"there is no test {node.name!r}", node.lineno - 1)
    return _applied(function, f"the test {node.name!r}", node)


def _applied(function: Callable[..., Any], what: str, node: nodes.Filter | nodes.Test) -> Step:
    assert node.node is not None
    value, (args, kwargs) = _step(node.node), _arguments(node)

    def run(scope: Scope) -> Any:
        arguments = [value(scope), *[arg(scope) for arg in args]]
        return _called(function, what, arguments, {key: arg(scope) for key, arg in kwargs.items()})

    return run


def _call(node: nodes.Call) -> Step:
    name, (args, kwargs) = _function(node.node), _arguments(node)

    def run(scope: Scope) -> Any:
        function = scope.function(name)
        if function is None:
            raise Invalid(f"there is no function {name!r}")
        arguments = [arg(scope) for arg in args]
        return _called(function, f"{name}()", arguments, {key: arg(scope) for key, arg in kwargs.items()})

    return run


def _function(node: nodes.Expr) -> str:
    """Return the name of what is called: ``compiler``, or ``env.get``."""
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name in _OBJECTS:
        return f"{node.node.name}.{node.attr}"
    raise Malformed("only functions can be called, values have no methods", node.lineno - 1)


def _arguments(node: nodes.Call | nodes.Filter | nodes.Test) -> tuple[list[Step], dict[str, Step]]:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        raise Malformed("* and ** are not supported", node.lineno - 1)
    return [_step(arg) for arg in node.args], {str(arg.key): _step(arg.value) for arg in node.kwargs}


def _called(function: Callable[..., Any], what: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        raise Invalid(f"{what} does not take these arguments ({error})") from error


def _item(node: nodes.Getitem | nodes.Getattr) -> Step:
    value = _step(node.node)
    if isinstance(node, nodes.Getattr):
        name = node.attr
        return lambda scope: _of(value(scope), name)
    if isinstance(node.arg, nodes.Slice):
        return _slice(value, node.arg)
    index = _step(node.arg)
    return lambda scope: _of(value(scope), index(scope))


def _of(value: Any, index: Any) -> Any:
    try:
        return value[index] if isinstance(defined(value), (str, list, dict)) else Undefined(str(index))
    except (LookupError, TypeError):
        return Undefined(str(index))


def _slice(value: Step, node: nodes.Slice) -> Step:
    bounds = [_step(bound) if bound is not None else None for bound in (node.start, node.stop, node.step)]

    def run(scope: Scope) -> Any:
        items = defined(value(scope))
        try:
            return items[slice(*[bound(scope) if bound else None for bound in bounds])]
        except (TypeError, ValueError) as error:
            raise Invalid(f"a slice of {text(items)}: {error}") from error

    return run


_OPERATORS: dict[type[nodes.Node], str] = {
    nodes.Add: "add",
    nodes.Sub: "sub",
    nodes.Mul: "mul",
    nodes.Div: "div",
    nodes.FloorDiv: "floordiv",
    nodes.Mod: "mod",
    nodes.Pow: "pow",
}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": equal,
    "ne": lambda left, right: not equal(left, right),
    "lt": less,
    "lteq": lambda left, right: not less(right, left),
    "gt": lambda left, right: less(right, left),
    "gteq": lambda left, right: not less(left, right),
    "in": contains,
    "notin": lambda item, items: not contains(item, items),
}
_MAKERS: dict[type[nodes.Node], Callable[[Any], Step]] = {
    nodes.Const: _constant,
    nodes.Name: _name,
    nodes.List: _sequence,
    nodes.Tuple: _sequence,
    nodes.Dict: _mapping,
    nodes.CondExpr: _choice,
    nodes.And: _and,
    nodes.Or: _or,
    nodes.Not: _not,
    nodes.Neg: _sign,
    nodes.Pos: _sign,
    **dict.fromkeys(_OPERATORS, _binary),
    nodes.Concat: _concat,
    nodes.Compare: _compare,
    nodes.Filter: _filter,
    nodes.Test: _test,
    nodes.Call: _call,
    nodes.Getitem: _item,
    nodes.Getattr: _item,
}
