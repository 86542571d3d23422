"""Expressions of selectors and of Jinja in recipe.yaml's notation."""

from __future__ import annotations

import pytest

from kiln.feedstock.convert.composition import ExpressionText, UnsupportedExpression, negation, unparenthesized
from kiln.feedstock.convert.expressions import ExpressionTranslator, NameScope, parse_selector

VALUES = {
    "python": frozenset({"3.12.* *_cpython"}),
    "cuda_compiler_version": frozenset({"None", "12.9"}),
    "level": frozenset({"1", "3"}),
    "mpi": frozenset({"nompi", "mpich"}),
}
ALWAYS = frozenset({"python", "cuda_compiler_version", "level"})


def translated(text: str, *, selector: bool = True) -> str:
    own = {"version": ExpressionText("version"), "hidden": ExpressionText("hidden")}
    scope = NameScope(own=own.get, always=ALWAYS, values=VALUES, hidden=frozenset({"hidden"}), selector=selector)
    return unparenthesized(ExpressionTranslator(scope).translate(parse_selector(text)).text)


@pytest.mark.parametrize(
    ("selector", "expression"),
    [
        ("linux", "linux"),
        ("linux and not aarch64", "linux and not aarch64"),
        ("not (linux or win)", "not (linux or win)"),
        ("(linux or win) and x86_64", "(linux or win) and x86_64"),
        ("x86", "x86 or x86_64"),
        ("py >= 38", 'match(python, ">=3.8")'),
        ("py == 311", 'match(python, "3.11.*")'),
        ("py > 39", 'match(python, ">=3.10")'),
        ("py <= 39", 'match(python, "<3.10")'),
        ("np < 20", 'match(numpy, "<2.0")'),
        ("py3k", 'match(python, ">=3")'),
        ("cuda_compiler_version != 'None'", 'cuda_compiler_version != "None"'),
        ("level >= 3", "level | int >= 3"),
        ("cuda_compiler_version == 12", 'cuda_compiler_version == "12"'),
        ("mpi == 'mpich'", 'mpi | default(false) == "mpich"'),
        ("cuda_compiler_version in (undefined, 'None')", 'cuda_compiler_version in [false, "None"]'),
        ("(python or '').startswith('12')", '(python | default("", true)) is startingwith("12")'),
        ("'cp313t' in str(python)", '"cp313t" in python'),
        ("int(level) > 1", "level | int > 1"),
        ("build_platform != target_platform", "build_platform != target_platform"),
        ("hidden == 1", "false == \"1\""),
        ("nothing", "nothing | default(false)"),
    ],
)  # fmt: skip
def test_a_selector(selector: str, expression: str) -> None:
    assert translated(selector) == expression


@pytest.mark.parametrize(
    ("template", "expression"),
    [
        ("version", "version"),
        ("version.split('.')[0]", '(version | split("."))[0]'),
        ("'.'.join(version.split('.')[:2])", '(version | split("."))[:2] | join(".")'),
        ("version|replace('-', '.')", 'version | replace("-", ".")'),
        ("version.replace('.', '_')", 'version | replace(".", "_")'),
        ("version ~ '_1'", 'version ~ "_1"'),
        ("1 + 2", "3"),
        ("'mpi_' + version", '"mpi_" + version'),
        ("25*(level | int - 1)", "25 * (level | int - 1)"),
        ("'a' if level == '1' else 'b'", '"a" if level == "1" else "b"'),
        ("mpi or 'nompi'", 'mpi | default("nompi", true)'),
        ("number | default(0)", "number | default(0)"),
        ("mpi", 'mpi | default("")'),
        ("environ.get('level', '1')", "level"),
        ("environ.get('mpi', 'x')", 'mpi | default("x")'),
        ("environ.get('HOME', 'x')", 'env.get("HOME", default="x")'),
        ("os.environ.get('HOME')", 'env.get("HOME", default="")'),
        ("compiler('c')", 'compiler("c")'),
        ("py", "python | version_to_buildstring"),
        ("PKG_HASH", "hash"),
        ("pin_subpackage('a', max_pin='x.x')", 'pin_subpackage("a", upper_bound="x.x")'),
        ("pin_subpackage('a', 'x', 'x')", 'pin_subpackage("a", lower_bound="x", upper_bound="x")'),
        ("pin_subpackage('a', exact=True)", 'pin_subpackage("a", exact=True)'),
        ("pin_compatible('a', '1.2', max_pin=None)", 'pin_compatible("a", lower_bound="1.2", upper_bound=none)'),
        ("pin_compatible('a', upper_bound='3')", 'pin_compatible("a", upper_bound="3")'),
        ("level is undefined", "level is undefined"),
    ],
)  # fmt: skip
def test_a_template(template: str, expression: str) -> None:
    assert translated(template, selector=False) == expression


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("'%s' % version", "formats no text with %"),
        ("version.title()", "no method .title()"),
        ("version | tojson", "no filter 'tojson'"),
        ("load_file_regex('x')", "no function load_file_regex()"),
        ("environ['HOME']", "env.get() alone"),
        ("version.parts", "no attribute .parts"),
        ("f(*version)", "no function f()"),
        ("compiler(*version)", "neither * nor **"),
        ("linux and", "is not an expression"),
        ("(1, 2)[7]", "out of range"),
        ("py < 3", "not a version such as 310"),
    ],
)
def test_what_recipe_yaml_has_not_is_refused(template: str, why: str) -> None:
    with pytest.raises(UnsupportedExpression) as refused:
        translated(template, selector=False)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("test", "opposite"),
    [
        ("linux", "not linux"),
        ("not linux", "linux"),
        ("mpi == 'a'", 'mpi | default(false) != "a"'),
        ("linux and win", "not (linux and win)"),
        ("1 < level < 3", "not 1 < level | int < 3"),
    ],
)
def test_the_opposite_of_a_condition(test: str, opposite: str) -> None:
    scope = NameScope(own=lambda _: None, always=ALWAYS, values=VALUES, selector=True)
    assert negation(ExpressionTranslator(scope).translate(parse_selector(test))).text == opposite
