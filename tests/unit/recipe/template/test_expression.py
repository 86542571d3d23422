"""Selectors' expressions: Python's meaning for the allowed operations, and an own error for all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.recipe.template.expression import (
    InvalidExpression,
    MissingName,
    OperationNotAllowed,
    compile_expression,
    evaluate_expression,
)
from kiln.recipe.template.names import RestrictedOs

if TYPE_CHECKING:
    from typing import Any

VALUES = {"a": 1, "b": 2, "s": "x-y-Z", "t": True, "f": False, "os": RestrictedOs({"CI": "1"}), "d": {"k": "v"}}


def value(text: str) -> Any:
    def lookup(name: str) -> Any:
        if name in VALUES:
            return VALUES[name]
        raise MissingName(name)

    return evaluate_expression(text, lookup)


@pytest.mark.parametrize(
    "text",
    [
        "a + b - 3 == 0",
        "b / a == 2.0 and b % 2 == 0",
        "-a < 0 <= a < b <= 2 != 3",
        "a in (1, 2) and 'q' not in s and s is not None",
        "s.split('-')[2].lower() == 'z'",
        "int('7') + len(s) == 12 and str(a) == '1' and float('1.5') > a",
        "s.startswith('x') and s.endswith('Z') and s.index('y') == 2 and s.rsplit('-')[0].strip().upper() == 'X'",
        "'+'.join(list(('p', 'q'))).replace('+', '') == 'pq'",
        "dict((('k', 1),)).get('k') == 1 and tuple([1]) == (1,)",
        "d['k'] == 'v' and {'k': a}['k'] == 1 and list(d.keys()) == ['k'] and list(d.values()) == ['v']",
        "list(d.items()) == [('k', 'v')]",
        "os.environ.get('CI') == '1' and os.getenv('NO', 'n') == 'n' and os.environ['CI'] and os.sep == '/'",
        "('y' if t else 'n') == 'y' and ('y' if f else 'n') == 'n'",
        "not f and (f or t)",
    ],
)
def test_the_value_is_pythons(text: str) -> None:
    assert value(text) == eval(text, {}, VALUES)
    assert value(text)


def test_operators_return_an_operand_and_stop_early() -> None:
    assert value("f or s") == "x-y-Z"
    assert value("a and 0 and missing") == 0
    assert value("t or missing") is True
    assert value("b < a < missing") is False


def test_the_names_are_those_that_may_be_looked_up() -> None:
    assert compile_expression("len(a) or (b if c else d.get(a))").names == {"a", "b", "c", "d"}
    assert compile_expression("int(a) or s.split(sep)").names == {"a", "s", "sep"}


def test_a_name_without_a_value_is_missing_only_when_it_is_needed() -> None:
    with pytest.raises(MissingName) as caught:
        value("a and nowhere")
    assert caught.value.name == "nowhere"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lambda: 1", "Lambda is not allowed"),
        ("[x for x in s]", "ListComp is not allowed"),
        ("(x := 1)", "NamedExpr is not allowed"),
        ("f'{a}'", "JoinedStr is not allowed"),
        ("a ** b", "Pow is not allowed"),
        ("a * 9", "Mult is not allowed"),
        ("~a", "Invert is not allowed"),
        ("s.format(a)", "the attribute 'format' is not allowed"),
        ("s.__class__", "the attribute '__class__' is not allowed"),
        ("open('/etc/passwd')", "calling open is not allowed"),
        ("a(1)", "calling a is not allowed"),
        ("(lambda: 1)()", "calling lambda ?: 1 is not allowed"),
        ("int(x=1)", "only plain arguments are allowed"),
        ("int(*s)", "only plain arguments are allowed"),
        ("{**d}", r"\*\* is not allowed"),
    ],
)
def test_other_operations_are_refused_before_they_run(text: str, reason: str) -> None:
    with pytest.raises(OperationNotAllowed, match=reason):
        compile_expression(text)


def test_text_formatting_is_refused_when_it_runs() -> None:
    """The operands decide whether ``%`` is a remainder or fills the memory: ``'%9999999999d' % 1``."""
    with pytest.raises(OperationNotAllowed, match="text formatting"):
        value("'%9999999999d' % a")
    with pytest.raises(OperationNotAllowed, match="text formatting"):
        value("s % a")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a b", "invalid syntax"),
        ("", "invalid syntax"),
        ("import os", "invalid syntax"),
        ("a" * 2_001, "longer than 2000 characters"),
        ("(" * 400 + "a" + ")" * 400, "too many nested parentheses|nested too deeply"),
        ("a\x00", "null bytes"),
    ],
)
def test_text_that_is_no_expression_is_invalid(text: str, reason: str) -> None:
    with pytest.raises(InvalidExpression, match=reason):
        compile_expression(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a + s", "TypeError: unsupported operand"),
        ("d['no']", "KeyError: 'no'"),
        ("int('x')", "ValueError: invalid literal"),
        ("a / 0", "ZeroDivisionError"),
        ("s < a", "TypeError: '<' not supported"),
    ],
)
def test_operands_that_do_not_fit_are_invalid(text: str, reason: str) -> None:
    with pytest.raises(InvalidExpression, match=reason):
        value(text)
