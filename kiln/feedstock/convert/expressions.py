"""Expressions of meta.yaml, Jinja's and selectors', in the notation of recipe.yaml.

Selectors are Python and templates are Jinja, but what recipes write in either is the same small language, which
Jinja's parser reads. rattler-build evaluates with minijinja: values have no methods, a version is compared by
``match()``, and a name without a value is an error, so that each such name gets a default here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2 import nodes

from kiln.feedstock.convert.composition import (
    ATOM,
    COMPARE,
    CONCAT,
    FILTER,
    OR,
    PRODUCT,
    SUM,
    UNARY,
    ExpressionText,
    UnsupportedExpression,
    and_expression,
    conditional_expression,
    literal_expression,
    negation,
    pin_arguments,
)
from kiln.recipe.v1.values import FILTERS, SIGNS, TESTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_BINARY: dict[type[nodes.Expr], tuple[str, int]] = {
    nodes.Add: ("+", SUM), nodes.Sub: ("-", SUM), nodes.Mul: ("*", PRODUCT),
    nodes.Div: ("/", PRODUCT), nodes.FloorDiv: ("//", PRODUCT), nodes.Mod: ("%", PRODUCT),
}  # fmt: skip
# Methods of texts, and the filters that do the same.
_METHODS = {"split": "split", "replace": "replace", "lower": "lower", "upper": "upper", "strip": "trim"}
_METHOD_TESTS = {"startswith": "startingwith", "endswith": "endingwith"}
_FUNCTIONS = frozenset({"compiler", "stdlib", "cdt"})
_PINS = frozenset({"pin_subpackage", "pin_compatible"})
_CASTS = {"int": "int", "list": "list", "len": "length"}
_PYTHON_SHORT = "python | version_to_buildstring"
# conda-build's own names, and what recipe.yaml has for them.
_NAMES: dict[str, tuple[str, int]] = {
    "PKG_HASH": ("hash", ATOM),
    "PKG_BUILDNUM": ("build_number", ATOM),
    "PKG_NAME": ("PKG_NAME", ATOM),
    "PKG_VERSION": ("PKG_VERSION", ATOM),
    "py": (_PYTHON_SHORT, FILTER),
    "CONDA_PY": (_PYTHON_SHORT, FILTER),
    "PY_VER": ('(python | split("."))[:2] | join(".")', FILTER),
    "np": ("numpy | version_to_buildstring", FILTER),
    "CONDA_NPY": ("numpy | version_to_buildstring", FILTER),
    "py3k": ('match(python, ">=3")', ATOM),
    "py2k": ('match(python, "<3")', ATOM),
    "x86": ("(x86 or x86_64)", ATOM),
    "arm": ("(linux and (armv6l or armv7l))", ATOM),
    "nomkl": ("false", ATOM),
    "R_VER": ("r_base", ATOM),
    "ARCH": ('(64 if linux64 or osx64 or win64 else "")', ATOM),
}
PLATFORM_NAMES = frozenset(
    """linux osx win unix x86_64 aarch64 ppc64le arm64 s390x armv6l armv7l riscv64 linux64 linux32 win64 win32 osx64
    emscripten wasi freebsd zos wasm32 target_platform build_platform SHLIB_EXT""".split()  # noqa: SIM905 - a word list
)
# Folders and programs that only a build knows, which a script may name in recipe.yaml, too.
BUILD_NAMES = frozenset(
    """PYTHON PREFIX BUILD_PREFIX SRC_DIR SP_DIR STDLIB_DIR RECIPE_DIR CPU_COUNT PERL LUA R LIBRARY_PREFIX LIBRARY_BIN
    LIBRARY_LIB LIBRARY_INC SCRIPTS""".split()  # noqa: SIM905 - as above
)
_ENVIRONMENT = jinja2.Environment(autoescape=False)  # noqa: S701 - nothing is rendered by it


@dataclass(frozen=True, kw_only=True)
class NameScope:
    """The meaning of names at the place of an expression.

    ``own`` returns the value of a name that the recipe sets, or None; ``always`` are the keys that every config has;
    ``values`` are all values of a key; ``hidden`` are names that the recipe sets, which selectors do not see.
    """

    own: Callable[[str], ExpressionText | None]
    always: frozenset[str]
    values: Mapping[str, frozenset[str]]
    hidden: frozenset[str] = frozenset()
    selector: bool = False


def parse_selector(text: str) -> nodes.Expr:
    """Return the syntax tree of a selector."""
    try:
        body = _ENVIRONMENT.parse(f"{{{{ ({text}) }}}}").body
    except jinja2.TemplateSyntaxError as error:
        raise UnsupportedExpression(f"[{text}] is not an expression: {error.message}") from error
    output = body[0]
    assert isinstance(output, nodes.Output)
    return output.nodes[0]


class ExpressionTranslator:
    """Translates syntax trees to expressions of recipe.yaml."""

    def __init__(self, scope: NameScope) -> None:
        self.scope = scope

    def translate(self, node: nodes.Node) -> ExpressionText:
        """Return the expression of a node.

        Raises:
            UnsupportedExpression: recipe.yaml has no notation for it.
        """
        makers: dict[type[nodes.Node], Callable[[Any], ExpressionText]] = {
            nodes.Const: lambda each: literal_expression(each.value),
            nodes.Name: self._translate_name,
            nodes.List: self._translate_list,
            nodes.Tuple: self._translate_list,
            nodes.CondExpr: self._translate_conditional,
            nodes.And: lambda each: and_expression(self.translate(each.left), self.translate(each.right)),
            nodes.Or: self._translate_or,
            nodes.Not: lambda each: negation(self.translate(each.node)),
            nodes.Neg: lambda each: ExpressionText(f"-{self.translate(each.node).text_at_precedence(UNARY)}", UNARY),
            nodes.Concat: self._translate_concat,
            nodes.Compare: self._translate_comparison,
            nodes.Filter: self._translate_filter,
            nodes.Test: self._translate_test,
            nodes.Call: self._translate_call,
            nodes.Getitem: self._translate_subscript,
            nodes.Getattr: self._refuse_attribute,
            **dict.fromkeys(_BINARY, self._translate_binary),
        }
        maker = makers.get(type(node))
        if maker is None:
            raise UnsupportedExpression(f"{type(node).__name__} has no equivalent in recipe.yaml")
        return maker(node)

    # -- names ---------------------------------------------------------------------------------------------

    def _translate_name(self, node: nodes.Name) -> ExpressionText:
        own = None if self.scope.selector else self.scope.own(node.name)
        return own or self._defaulted_where_undefined(node.name, self._name_without_default(node.name))

    def _name_without_default(self, name: str) -> ExpressionText:
        if name == "undefined":
            return ExpressionText("false" if self.scope.selector else '""')
        own = None if self.scope.selector else self.scope.own(name)
        if own is not None:
            return own
        return ExpressionText(*_NAMES[name]) if name in _NAMES else ExpressionText(name)

    def _defaulted_where_undefined(self, name: str, value: ExpressionText) -> ExpressionText:
        """Return a name's value with a default where some config gives it none."""
        if name in self.scope.hidden and name not in self.scope.values and self.scope.selector:
            return ExpressionText("false")
        known = self.scope.always | PLATFORM_NAMES | BUILD_NAMES | _NAMES.keys() | {"undefined"}
        if name in known or value.text != name:
            return value
        return ExpressionText(
            f"{name} | default({'false' if self.scope.selector else literal_expression('').text})", FILTER
        )

    # -- operators -----------------------------------------------------------------------------------------

    def _translate_list(self, node: nodes.List | nodes.Tuple) -> ExpressionText:
        items = [self.translate(item) for item in node.items]
        known = [item.constant for item in items] if all(item.is_constant for item in items) else None
        return ExpressionText(f"[{', '.join(item.text for item in items)}]", constant=known)

    def _translate_conditional(self, node: nodes.CondExpr) -> ExpressionText:
        other = None if node.expr2 is None else self.translate(node.expr2)
        return conditional_expression(self.translate(node.test), self.translate(node.expr1), other)

    def _translate_or(self, node: nodes.Or) -> ExpressionText:
        right = self.translate(node.right)
        if isinstance(node.left, nodes.Name) and isinstance(node.right, nodes.Const):
            left = self._name_without_default(node.left.name)
            if isinstance(node.right.value, str):  # the value itself is meant, not whether it is true
                return ExpressionText(f"{left.text_at_precedence(FILTER)} | default({right.text}, true)", FILTER)
        left = self.translate(node.left)
        return ExpressionText(f"{left.text_at_precedence(OR)} or {right.text_at_precedence(OR)}", OR)

    def _translate_concat(self, node: nodes.Concat) -> ExpressionText:
        parts = [self.translate(part) for part in node.nodes]
        return ExpressionText(" ~ ".join(part.text_at_precedence(CONCAT) for part in parts), CONCAT)

    def _translate_binary(self, node: Any) -> ExpressionText:
        sign, level = _BINARY[type(node)]
        left, right = self.translate(node.left), self.translate(node.right)
        if sign == "%" and isinstance(left.constant, str):
            raise UnsupportedExpression("recipe.yaml formats no text with %")
        if sign == "+" and _are_addable_constants(left.constant, right.constant):
            return literal_expression(left.constant + right.constant)
        return ExpressionText(f"{left.text_at_precedence(level)} {sign} {right.text_at_precedence(level + 1)}", level)

    def _translate_comparison(self, node: nodes.Compare) -> ExpressionText:
        if len(node.ops) == 1:
            version = self._translate_version_comparison(node.expr, node.ops[0])
            if version is not None:
                return version
        left = self._translate_comparison_operand(node.expr, [operand.expr for operand in node.ops])
        rest = [
            f"{SIGNS[op.op]} {self._translate_comparison_operand(op.expr, [node.expr]).text_at_precedence(SUM)}"
            for op in node.ops
        ]
        return ExpressionText(" ".join([left.text_at_precedence(SUM), *rest]), COMPARE)

    def _translate_comparison_operand(self, node: nodes.Expr, others: list[nodes.Expr]) -> ExpressionText:
        """Return an operand of a comparison: a selector compares texts of digits as numbers, recipe.yaml as texts."""
        value = self.translate(node)
        if not self.scope.selector:
            return value
        is_numeric = isinstance(node, nodes.Name) and self._has_only_digit_values(node)
        if is_numeric and any(_is_integer_literal(other) for other in others):
            return ExpressionText(f"{value.text_at_precedence(FILTER)} | int", FILTER)
        if _is_integer_literal(node) and not any(self._has_only_digit_values(other) for other in others):
            return literal_expression(str(value.constant))
        return value

    def _has_only_digit_values(self, node: nodes.Expr) -> bool:
        if not isinstance(node, nodes.Name):
            return True
        every = self.scope.values.get(node.name, frozenset())
        return bool(every) and all(word.isdigit() for word in every)

    def _translate_version_comparison(self, left: nodes.Expr, operand: nodes.Operand) -> ExpressionText | None:
        """Return the comparison of ``py`` or ``np`` with a number, which recipe.yaml does by ``match()``."""
        names = {"py": "python", "np": "numpy"}
        if not (isinstance(left, nodes.Name) and left.name in names and _is_integer_literal(operand.expr)):
            return None
        number = getattr(operand.expr, "value", 0)
        digits = str(number)
        if len(digits) < 2:
            raise UnsupportedExpression(f"{left.name} is compared with {number}, which is not a version such as 310")
        version = f"{digits[0]}.{digits[1:]}"
        sign = SIGNS[operand.op]
        spec = {
            "==": f"{version}.*",
            "!=": f"!={version}.*",
            "<=": f"<{_next_version(version)}",
            ">": f">={_next_version(version)}",
        }
        return ExpressionText(f'match({names[left.name]}, "{spec.get(sign, sign + version)}")')

    # -- filters, tests, calls -----------------------------------------------------------------------------

    def _translate_filter(self, node: nodes.Filter) -> ExpressionText:
        if node.name == "default" and isinstance(node.node, nodes.Name):
            value = self._name_without_default(node.node.name)
            if self.scope.own(node.node.name) is not None:
                return value  # the recipe has set it
        else:
            assert node.node is not None
            value = self.translate(node.node)
        return self._apply_filter(value, node.name, node)

    def _apply_filter(self, value: ExpressionText, name: str, node: nodes.Filter | nodes.Call) -> ExpressionText:
        if name == "string":
            return ExpressionText(f'{value.text_at_precedence(CONCAT)} ~ ""', CONCAT)
        if name not in FILTERS:
            raise UnsupportedExpression(f"recipe.yaml has no filter {name!r}")
        known = _constant_filter_result(name, value, [getattr(arg, "value", None) for arg in node.args])
        if known is not None:
            return known
        arguments = self._translate_arguments(node)
        return ExpressionText(
            f"{value.text_at_precedence(FILTER)} | {name}{f'({arguments})' if arguments else ''}", FILTER
        )

    def _translate_arguments(self, node: nodes.Filter | nodes.Test | nodes.Call) -> str:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise UnsupportedExpression("recipe.yaml has neither * nor ** in calls")
        named = [f"{keyword.key}={self.translate(keyword.value).text}" for keyword in node.kwargs]
        return ", ".join([*(self.translate(arg).text for arg in node.args), *named])

    def _translate_test(self, node: nodes.Test) -> ExpressionText:
        if node.name not in TESTS:
            raise UnsupportedExpression(f"recipe.yaml has no test {node.name!r}")
        named = isinstance(node.node, nodes.Name) and node.name in {"defined", "undefined"}
        value = self._name_without_default(node.node.name) if named else self.translate(node.node)  # type: ignore[attr-defined]
        arguments = self._translate_arguments(node)
        return ExpressionText(
            f"{value.text_at_precedence(ATOM)} is {node.name}{f'({arguments})' if arguments else ''}", FILTER
        )

    def _translate_call(self, node: nodes.Call) -> ExpressionText:
        if isinstance(node.node, nodes.Name):
            return self._translate_function_call(node.node.name, node)
        if isinstance(node.node, nodes.Getattr):
            return self._translate_method_call(node.node, node)
        raise UnsupportedExpression("recipe.yaml calls functions by their names alone")

    def _translate_function_call(self, name: str, node: nodes.Call) -> ExpressionText:
        if name in _FUNCTIONS:
            return ExpressionText(f"{name}({self._translate_arguments(node)})")
        if name in _PINS:
            return ExpressionText(f"{name}({pin_arguments(name, node, lambda each: self.translate(each).text)})")
        if name == "str" and len(node.args) == 1:
            return self.translate(node.args[0])
        if name in _CASTS and len(node.args) == 1:
            return ExpressionText(f"{self.translate(node.args[0]).text_at_precedence(FILTER)} | {_CASTS[name]}", FILTER)
        raise UnsupportedExpression(f"recipe.yaml has no function {name}()")

    def _translate_method_call(self, target: nodes.Getattr, node: nodes.Call) -> ExpressionText:
        if target.attr in {"get", "getenv"} and _reads_environ(target):
            return self._translate_environment_variable(node)
        if target.attr == "join" and len(node.args) == 1:
            value, separator = self.translate(node.args[0]), self.translate(target.node)
            known = _constant_filter_result("join", value, [separator.constant])
            return known or ExpressionText(f"{value.text_at_precedence(FILTER)} | join({separator.text})", FILTER)
        value = self.translate(target.node)
        if target.attr in _METHOD_TESTS:
            return ExpressionText(
                f"{value.text_at_precedence(ATOM)} is {_METHOD_TESTS[target.attr]}({self._translate_arguments(node)})",
                FILTER,
            )
        if target.attr in _METHODS:
            return self._apply_filter(value, _METHODS[target.attr], node)
        raise UnsupportedExpression(f"recipe.yaml has no method .{target.attr}()")

    def _translate_environment_variable(self, node: nodes.Call) -> ExpressionText:
        """Return a variable of the environment, in which conda-build has the variant's keys, too."""
        name = getattr(node.args[0], "value", "") if node.args else ""
        default = self.translate(node.args[1]) if len(node.args) > 1 else literal_expression("")
        if name in self.scope.always:
            return ExpressionText(str(name))
        if name in self.scope.values:
            return ExpressionText(f"{name} | default({default.text})", FILTER)
        return ExpressionText(f"env.get({literal_expression(name).text}, default={default.text})")

    def _translate_subscript(self, node: nodes.Getitem) -> ExpressionText:
        if _reads_environ(node):
            raise UnsupportedExpression("recipe.yaml reads variables of the environment with env.get() alone")
        value = self.translate(node.node)
        if not isinstance(node.arg, nodes.Slice):
            index = self.translate(node.arg)
            if isinstance(value.constant, (str, list)) and isinstance(index.constant, int):
                return _item_of_constant(value.constant, index.constant)
            return ExpressionText(f"{value.text_at_precedence(ATOM)}[{index.text}]")
        bounds = [node.arg.start, node.arg.stop, node.arg.step]
        parts = ["" if bound is None else self.translate(bound).text for bound in bounds]
        return ExpressionText(f"{value.text_at_precedence(ATOM)}[{':'.join(parts[: 3 if parts[2] else 2])}]")

    def _refuse_attribute(self, node: nodes.Getattr) -> ExpressionText:
        raise UnsupportedExpression(f"recipe.yaml has no attribute .{node.attr}")


def _item_of_constant(value: Any, index: int) -> ExpressionText:
    try:
        return literal_expression(value[index])
    except IndexError as error:
        raise UnsupportedExpression(f"the index {index} is out of range") from error


def _constant_filter_result(name: str, value: ExpressionText, arguments: list[Any]) -> ExpressionText | None:
    """Return the result of a filter on lists whose items are known: their names stand in loops that end here."""
    if name == "join" and isinstance(value.constant, list) and isinstance(arguments[0], str):
        return literal_expression(arguments[0].join(map(str, value.constant)))
    if name == "split" and isinstance(value.constant, str) and arguments and isinstance(arguments[0], str):
        return literal_expression(value.constant.split(arguments[0]))
    return None


def _are_addable_constants(left: Any, right: Any) -> bool:
    return type(left) is type(right) and isinstance(left, (int, str, list)) and not isinstance(left, bool)


def _reads_environ(node: nodes.Getattr | nodes.Getitem) -> bool:
    inner = node.node
    if isinstance(inner, nodes.Getattr) and inner.attr == "environ":
        return True
    return isinstance(inner, nodes.Name) and inner.name in {"environ", "os"}


def _is_integer_literal(node: nodes.Expr) -> bool:
    return isinstance(node, nodes.Const) and isinstance(node.value, int) and not isinstance(node.value, bool)


def _next_version(version: str) -> str:
    head, _, last = version.rpartition(".")
    return f"{head}.{int(last) + 1}"
