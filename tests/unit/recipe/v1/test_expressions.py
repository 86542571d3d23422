"""Expressions of recipe.yaml have the values that rattler-build 0.73 gives them; each row was asked of it."""

from __future__ import annotations

import pytest

from kiln.base.yaml import TypedText
from kiln.recipe.v1.expressions import MalformedExpression, compile_expression, compile_template
from kiln.recipe.v1.scope import VariantScope
from kiln.recipe.v1.values import InvalidOperation, printed_text

VARIANT = {
    "python": "3.11.* *_cpython",
    "mpi": "openmpi",
    "cuda": "None",
    "flag": TypedText(False),
    "number": TypedText(13),
    "c_compiler": "gcc",
    "c_compiler_version": "14",
    "c_stdlib": "sysroot",
    "c_stdlib_version": "2.17",
    "rust_compiler_version": ">=1.80",
}


def scope() -> VariantScope:
    return VariantScope(VARIANT, "linux-64", "linux-64")


def rendered(given: str) -> str:
    return printed_text(compile_template(given).steps(scope()))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("x${{ 1 == 1 }}", "xtrue"),
        ("x${{ none }}", "xnone"),
        ("x${{ 7/2 }}", "x3.5"),
        ("x${{ 4/2 }}", "x2.0"),
        ("x${{ 7//2 }}", "x3"),
        ("x${{ -7 // 2 }}", "x-4"),
        ("x${{ -7 % 3 }}", "x2"),
        ("x${{ 7 / 0 }}", "xinf"),
        ("x${{ 2**3 }}", "x8"),
        ("x${{ '1' ~ 2 }}", "x12"),
        ("x${{ '1' + '2' }}", "x12"),
        ("x${{ 'a' * 3 }}", "xaaa"),
        ("x${{ [1,'a',true] }}", 'x[1, "a", true]'),
        ("x${{ {'a':1} }}", 'x{"a": 1}'),
        ("x${{ 'a' if false }}", "x"),
        ("x${{ 'a' if true else nowhere }}", "xa"),
        ("x${{ nowhere | default('d') }}", "xd"),
        ("x${{ none | default('d') }}", "xnone"),
        ("x${{ '' | default('q', true) }}", "xq"),
        ("x${{ ('1.2.3'|split('.'))[:2]|join('.') }}", "x1.2"),
        ("x${{ 'a b'|split }}", 'x["a", "b"]'),
        ("x${{ 'abc'[0] }}${{ 'abc'|first }}${{ 'abc'|last }}", "xaac"),
        ("x${{ '12'|int + 1 }}", "x13"),
        ("x${{ '3.7'|int }}", "x3"),
        ("x${{ true|int }}", "x1"),
        ("x${{ -3|abs }}", "x3"),
        ("x${{ 'false'|bool }}", "xtrue"),
        ("x${{ [3,1,2]|sort }}${{ [3,1,2]|max }}${{ [3,1,2]|min }}", "x[1, 2, 3]31"),
        ("x${{ 'abc'|reverse }}", "xcba"),
        ("x${{ [1,1,2]|unique|list }}", "x[1, 2]"),
        ("x${{ ' a '|trim }}${{ 'aab'|trim('a') }}", "xab"),
        ("x${{ 'aX'|lower }}${{ 'aX'|upper }}", "xaxAX"),
        ("x${{ 'abc'|length }}", "x3"),
        ("x${{ python|version_to_buildstring }}", "x311"),
        ("x${{ 'a-b'|replace('-','_') }}", "xa_b"),
        ("x${{ 1 in [1] }}${{ 'a' in 'abc' }}${{ 'z' not in 'abc' }}", "xtruetruetrue"),
        ("x${{ 1 is odd }}${{ nowhere is defined }}${{ 'a' is string }}", "xtruefalsetrue"),
        ("x${{ 1 < '2' }}${{ 1 == '1' }}${{ 1 == 1.0 }}", "xtruefalsetrue"),
        ("x${{ none or 'b' }}${{ 'a' and 'b' }}${{ not '' }}", "xbbtrue"),
        ("x${{ {'a':1}.a }}", "x1"),
        ("x${{ linux and not win and unix and x86_64 and linux64 }}", "xtrue"),
        ("x${{ target_platform }} ${{ SHLIB_EXT }}", "xlinux-64 .so"),
        ("x${{ is_linux(target_platform) }}${{ is_windows(target_platform) }}", "xtruefalse"),
        ("${{ compiler('c') }}", "gcc_linux-64 =14"),
        ("${{ compiler('cxx') }}", "gxx_linux-64"),
        ("${{ compiler('rust') }}", "rust_linux-64 >=1.80"),
        ("${{ compiler('fortran') }}", "gfortran_linux-64"),
        ("${{ stdlib('c') }}", "sysroot_linux-64 =2.17"),
        ("${{ cdt('foo 1.*') }}", "foo-cos6-x86_64 1.*"),
        ("${{ match(python, '>=3.10,<3.12') }}${{ match(python, '<3.11') }}", "truefalse"),
        ("{% if cuda != 'None' %}cuda${{ cuda }}{% elif linux %}cpu{% else %}none{% endif %}${{ 1 }}", "cpu1"),
        ("a {%- if win -%} b {%- else -%} c {%- endif %}${{ 1 }}", "ac1"),
        ("${{ env.exists('CI') }}${{ env.get('CI', default='no') }}", "falseno"),
        ("${{ match(nowhere, '>=3.10') }}", "true"),
        ("${{ flag }}${{ number + 1 }}${{ 'y' if flag else 'n' }}", "false14n"),
        ("${{ pin_subpackage('a') }}", '{"pin_subpackage":{"name":"a","lower_bound":"x.x.x.x.x.x","upper_bound":"x"}}'),
        ("${{ pin_compatible('a', exact=True) }}", '{"pin_compatible":{"name":"a","exact":true}}'),
        ("${{ pin_subpackage('a', upper_bound=None) }}", '{"pin_subpackage":{"name":"a","lower_bound":"x.x.x.x.x.x"}}'),
    ],
)
def test_a_template_renders_as_rattler_build_renders_it(given: str, wanted: str) -> None:
    assert rendered(given) == wanted


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("${{ nowhere ~ 'x' }}", "nowhere is not defined"),
        ("${{ '1' + 2 }}", "add does not fit a text and a number"),
        ("${{ 'x'|int }}", "not a number"),
        ("${{ [1,2][5] }}x", "5 is not defined"),
        ("${{ range(3) }}", "unknown function 'range'"),
        ("${{ stdlib('cxx') }}", "nothing gives cxx_stdlib"),
        ("${{ pin_subpackage('a', max_pin='x') }}", "takes no max_pin"),
        ("${{ pin_subpackage('a', exact=True, upper_bound='x') }}", "exact or bounds, not both"),
        ("${{ match('1', '>>2') }}", "match()"),
        ("${{ 2 ** 1000 }}", "too large"),
        ("${{ env.get('HOME') }}", "no variables of the environment"),
        ("${{ git.head_rev('.') }}", "git.head_rev() is not supported"),
        ("${{ load_from_file('x') }}", "load_from_file() is not supported"),
        ("${{ 'a'|replace('a') }}", "does not take these arguments"),
        ("${{ 'a'|split('') }}", "the filter 'split' does not take these arguments (empty separator)"),
        ("${{ 'a'|split('a', 10 ** 30) }}", "the filter 'split' does not take these arguments"),
        ("${{ {'a': 1}[1:] }}", "a slice of"),
        ("${{ 10 ** 30 * 10 ** 30 }}", "mul: the result is too large"),
    ],
)
def test_what_has_no_value_is_told(given: str, why: str) -> None:
    with pytest.raises(InvalidOperation) as caught:
        rendered(given)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("${{ 'a'.upper() }}", "have no methods"),
        ("${{ 10|string }}", "unknown filter 'string'"),
        ("${{ 1 is prime }}", "unknown test 'prime'"),
        ("${{ a", "unexpected end"),
        ("{% for x in y %}${{ x }}{% endfor %}", "the statement for is not supported"),
        ("${{ f(*x) }}", "* and **"),
    ],
)
def test_what_is_no_expression_is_refused(given: str, why: str) -> None:
    with pytest.raises(MalformedExpression) as caught:
        compile_template(given)
    assert why in str(caught.value)


def test_a_condition_stands_without_delimiters() -> None:
    with pytest.raises(MalformedExpression):
        compile_expression("${{ linux }}")
    assert compile_expression("linux and mpi == 'openmpi'").steps(scope()) is True


def test_an_attribute_of_python_is_out_of_reach() -> None:
    with pytest.raises(InvalidOperation):
        rendered("${{ ''.__class__ }}")


def test_the_keys_of_the_variant_that_are_read_are_recorded() -> None:
    here = scope()
    compile_template("${{ mpi if linux else python }} ${{ compiler('c') }}").steps(here)
    assert here.reads == {"mpi", "c_compiler", "c_compiler_version"}


def test_the_names_of_every_branch_are_known() -> None:
    names = compile_template("${{ mpi if linux else python }} ${{ stdlib('c') }}").names
    assert names == {"mpi", "linux", "python", "c_stdlib", "c_stdlib_version", "CONDA_BUILD_SYSROOT"}
