"""Evaluate a selector's Python expression over its syntax tree: names, literals and a few harmless operations."""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Lookup = Callable[[str], Any]
    Step = Callable[[Lookup], Any]

_MAX_LENGTH = 2_000

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "int": int, "float": float, "len": len, "str": str, "list": list, "dict": dict, "tuple": tuple,
}  # fmt: skip
_METHODS = frozenset(
    [
        "endswith", "index", "lower", "rsplit", "split", "startswith", "strip", "upper", "join", "replace",
        "get", "items", "keys", "values", "getenv",
    ]
)  # fmt: skip
_ATTRIBUTES = _METHODS | {"environ", "pathsep", "sep"}


class ExpressionError(Exception):
    """An expression has no value."""


class MissingName(ExpressionError):
    """A name that the expression needs has no value."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class OperationNotAllowed(ExpressionError):
    """The expression uses an operation that selectors may not."""


class InvalidExpression(ExpressionError):
    """The text is not an expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledExpression:
    """A compiled expression: the names that it may look up, and the function that evaluates it."""

    names: frozenset[str]
    steps: Step


@lru_cache(maxsize=4096)
def compile_expression(text: str) -> CompiledExpression:
    """Compile an expression.

    Raises:
        InvalidExpression: it is not a Python expression.
        OperationNotAllowed: it uses syntax, a function or an attribute beyond the allowed ones.
    """
    if len(text) > _MAX_LENGTH:
        raise InvalidExpression(f"longer than {_MAX_LENGTH} characters")
    try:
        tree = ast.parse(text.lstrip(), mode="eval")
        steps = _node_evaluator(tree.body)
    except (SyntaxError, ValueError) as error:
        raise InvalidExpression(getattr(error, "msg", "") or str(error)) from error
    except (RecursionError, MemoryError) as error:
        raise InvalidExpression("nested too deeply") from error
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id not in _FUNCTIONS}
    return CompiledExpression(names=frozenset(names), steps=steps)


def evaluate_expression(text: str, lookup: Lookup) -> Any:
    """Return the value of an expression; ``lookup`` returns a name's value or raises MissingName.

    Raises:
        MissingName: a name has no value.
        OperationNotAllowed: as for compile_expression, or it uses text formatting.
        InvalidExpression: as for compile_expression, or an operation does not fit its operands.
    """
    expression = compile_expression(text)
    try:
        return expression.steps(lookup)
    except (ExpressionError, MemoryError):
        raise
    except RecursionError as error:
        raise InvalidExpression("nested too deeply") from error
    except Exception as error:
        raise InvalidExpression(f"{type(error).__name__}: {error}") from error


def _node_evaluator(node: ast.expr) -> Step:
    maker = _EVALUATOR_BY_NODE_TYPE.get(type(node))
    if maker is None:
        raise OperationNotAllowed(f"{type(node).__name__} is not allowed in a selector")
    return maker(node)


def _constant_evaluator(node: ast.Constant) -> Step:
    value = node.value
    return lambda _: value


def _name_evaluator(node: ast.Name) -> Step:
    name = node.id
    if name in _FUNCTIONS:
        function = _FUNCTIONS[name]
        return lambda _: function
    return lambda lookup: lookup(name)


def _and_or_evaluator(node: ast.BoolOp) -> Step:
    parts = [_node_evaluator(part) for part in node.values]
    stop = isinstance(node.op, ast.Or)

    def evaluate_node(lookup: Lookup) -> Any:
        value: Any = None
        for part in parts:
            value = part(lookup)
            if bool(value) is stop:
                break
        return value

    return evaluate_node


def _unary_operator_evaluator(node: ast.UnaryOp) -> Step:
    operand = _node_evaluator(node.operand)
    if isinstance(node.op, ast.Not):
        return lambda lookup: not operand(lookup)
    if isinstance(node.op, ast.USub):
        return lambda lookup: -operand(lookup)
    raise OperationNotAllowed(f"{type(node.op).__name__} is not allowed in a selector")


def _comparison_evaluator(node: ast.Compare) -> Step:
    first = _node_evaluator(node.left)
    rest = [(_COMPARE[type(op)], _node_evaluator(part)) for op, part in zip(node.ops, node.comparators, strict=True)]

    def evaluate_node(lookup: Lookup) -> Any:
        left, result = first(lookup), True
        for test, part in rest:
            right = part(lookup)
            result = test(left, right)
            if not result:
                break
            left = right
        return result

    return evaluate_node


def _arithmetic_evaluator(node: ast.BinOp) -> Step:
    left, right, op = _node_evaluator(node.left), _node_evaluator(node.right), type(node.op)
    if op is ast.Add:
        return lambda lookup: left(lookup) + right(lookup)
    if op is ast.Sub:
        return lambda lookup: left(lookup) - right(lookup)
    if op is ast.Div:
        return lambda lookup: left(lookup) / right(lookup)
    if op is ast.Mod:
        return lambda lookup: _numeric_remainder(left(lookup), right(lookup))
    raise OperationNotAllowed(f"{op.__name__} is not allowed in a selector")


def _numeric_remainder(left: Any, right: Any) -> Any:
    if isinstance(left, (str, bytes)):
        raise OperationNotAllowed("text formatting is not allowed in a selector")
    return left % right


def _conditional_evaluator(node: ast.IfExp) -> Step:
    test, yes, no = _node_evaluator(node.test), _node_evaluator(node.body), _node_evaluator(node.orelse)
    return lambda lookup: yes(lookup) if test(lookup) else no(lookup)


def _sequence_evaluator(node: ast.Tuple | ast.List) -> Step:
    parts = [_node_evaluator(part) for part in node.elts]
    kind = tuple if isinstance(node, ast.Tuple) else list
    return lambda lookup: kind(part(lookup) for part in parts)


def _dictionary_evaluator(node: ast.Dict) -> Step:
    if None in node.keys:
        raise OperationNotAllowed("** is not allowed in a selector")
    pairs = [
        (_node_evaluator(key), _node_evaluator(value)) for key, value in zip(node.keys, node.values, strict=True) if key
    ]
    return lambda lookup: {key(lookup): value(lookup) for key, value in pairs}


def _subscript_evaluator(node: ast.Subscript) -> Step:
    value, index = _node_evaluator(node.value), _node_evaluator(node.slice)
    return lambda lookup: value(lookup)[index(lookup)]


def _attribute_evaluator(node: ast.Attribute) -> Step:
    if node.attr not in _ATTRIBUTES:
        raise OperationNotAllowed(f"the attribute {node.attr!r} is not allowed in a selector")
    value, name = _node_evaluator(node.value), node.attr
    return lambda lookup: getattr(value(lookup), name)


def _call_evaluator(node: ast.Call) -> Step:
    allowed = node.func.id in _FUNCTIONS if isinstance(node.func, ast.Name) else isinstance(node.func, ast.Attribute)
    if not allowed:
        raise OperationNotAllowed(f"calling {ast.unparse(node.func)} is not allowed in a selector")
    if node.keywords or any(isinstance(part, ast.Starred) for part in node.args):
        raise OperationNotAllowed("only plain arguments are allowed in a selector")
    function, parts = _node_evaluator(node.func), [_node_evaluator(part) for part in node.args]
    return lambda lookup: function(lookup)(*[part(lookup) for part in parts])


_EVALUATOR_BY_NODE_TYPE: dict[type[ast.expr], Callable[[Any], Step]] = {
    ast.Constant: _constant_evaluator,
    ast.Name: _name_evaluator,
    ast.BoolOp: _and_or_evaluator,
    ast.UnaryOp: _unary_operator_evaluator,
    ast.Compare: _comparison_evaluator,
    ast.BinOp: _arithmetic_evaluator,
    ast.IfExp: _conditional_evaluator,
    ast.Tuple: _sequence_evaluator,
    ast.List: _sequence_evaluator,
    ast.Dict: _dictionary_evaluator,
    ast.Subscript: _subscript_evaluator,
    ast.Attribute: _attribute_evaluator,
    ast.Call: _call_evaluator,
}
