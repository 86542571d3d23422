"""Requirements are printed as rattler-build 0.73 prints them; each row was asked of it."""

from __future__ import annotations

import pytest

from kiln.base.errors import RecipeFault
from kiln.base.yaml import ScalarInterpretation, parse_document
from kiln.recipe.rendered import Pin
from kiln.recipe.v1.recipe import RecipeV1
from kiln.recipe.v1.sections import canonical_spec, name_of_bare_requirement, parse_requirement
from kiln.recipe.v1.unknown_keys import unknown_keys


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("python", "python"),
        ("Foo_Bar", "foo_bar"),
        ("gcc_linux-64 =14", "gcc_linux-64 14.*"),
        ("a 1.*", "a 1.*"),
        ("a 1.2*", "a 1.2.*"),
        ("a ==1.2", "a ==1.2"),
        ("a >=1, <2", "a >=1,<2"),
        ("a >=1|<0.5", "a >=1|<0.5"),
        ("a>=3", "a >=3"),
        ("a >= 3", "a >=3"),
        ("a =1|=2", "a 1.*|2.*"),
        ("a !=1.*", "a !=1.*"),
        ("a ~=1.4", "a ~=1.4"),
        ("a *", "a *"),
        ("a *.*", "a *"),
        ("a * nompi_*", "a * nompi_*"),
        ("a 3.10.* *_cpython", "a 3.10.* *_cpython"),
        ("a ==1.2.3.4 h*_0", "a ==1.2.3.4 h*_0"),
        ("a[version='>=1',build='x*']", "a >=1 x*"),
        ("conda-forge::a 1.*", "conda-forge::a 1.*"),
        ("__glibc >=2.17", "__glibc >=2.17"),
    ],
)
def test_a_match_spec_is_printed(given: str, wanted: str) -> None:
    assert canonical_spec(given) == wanted


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("a 1.2", "Did you mean '==1.2'"),
        ("a =1.2.*", "is incompatible with '='"),
        ("a >=1.2.*", "is incompatible with '>='"),
        ("a 1.* b c", "the build string 'b c' is not valid"),
        ("=1.2", "missing package name"),
        ("a[license=MIT]", "only version= and build="),
        ("a[version=1", "is not a valid package name"),
        ("a " + "(" * 300 + ">=1" + ")" * 300, "300 parentheses"),
        ('x {"pin_subpackage": {}}', "invalid package name"),
    ],
)
def test_what_is_no_match_spec_is_refused(given: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        canonical_spec(given)


def test_a_pin_stays_open() -> None:
    assert parse_requirement('{"pin_subpackage":{"name":"A","upper_bound":"x.x"}}') == Pin(
        name="a", subpackage=True, min_pin=None, max_pin="x.x"
    )
    assert parse_requirement('{"pin_compatible":{"name":"a","exact":true}}') == Pin(
        name="a", subpackage=False, min_pin=None, max_pin=None, exact=True, by_engine=True
    )


@pytest.mark.parametrize("given", ['{"pin_subpackage":', '{"pin":{"name":"a"}}', '{"pin_subpackage":{}} x'])
def test_what_only_looks_like_a_pin_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="pin"):
        parse_requirement(given)


def test_only_a_bare_name_is_free() -> None:
    specs = ("python", "python *", "c::python", "a[build=x]")
    assert [name_of_bare_requirement(canonical_spec(spec)) for spec in specs] == ["python", "", "", ""]


CASES = [
    ("build: {skrip: x, script: {content: a, envv: {}}}", [("build", "skrip"), ("script", "envv")]),
    ("requirements: {hots: [python], run_exports: {waek: [a]}}", [("requirements", "hots"), ("run_exports", "waek")]),
    ("source: [{if: unix, then: {url: a, shaa256: b}, else: {ulr: c}}]", [("source", "shaa256"), ("source", "ulr")]),
    ("source: {url: a, md6: b}", [("source", "md6")]),
    ("tests: [{python: {importz: [a]}}, {skript: [a]}]", [("python", "importz"), ("test", "skript")]),
    ("outputs: [{package: {name: a, verzion: b}, abouts: {}}]", [("an output", "abouts"), ("package", "verzion")]),
    (
        "outputs: [{if: unix, then: [{staging: {name: a}, about: {}, build: {script: a, number: 1}}]}]",
        [("an output", "about"), ("build of a staging output", "number")],
    ),
]
VALID = [
    "build: {number: 0, script: [a], noarch: python, dynamic_linking: {rpaths: [lib/]}}\nextra: {any: 1}",
    "build: {script: {if: unix, then: a}, steps: []}",
    "requirements: {host: [{if: unix, then: gcc}, {pin_subpackage: {name: a}}], run_exports: [a]}",
    "tests: [{package_contents: {files: {exists: [a]}}}, {script: [a], files: {recipe: [b]}}]",
    "about: null\noutputs: text",
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_unknown_keys_are_found(text: str, expected: list[tuple[str, str]]) -> None:
    found = list(unknown_keys(parse_document(text, "recipe.yaml", ScalarInterpretation.PLACED).value))
    assert [(unknown.section, str(unknown.key)) for unknown in found] == expected
    assert all(unknown.key.line == 1 for unknown in found)


@pytest.mark.parametrize("text", VALID)
def test_known_keys_are_not(text: str) -> None:
    assert list(unknown_keys(parse_document(text, "recipe.yaml", ScalarInterpretation.PLACED).value)) == []


def test_a_recipe_is_refused_with_all_its_unknown_keys_and_sections() -> None:
    text = (
        "package:\n  name: a\n  version: '1'\nabut: {}\n"
        "source:\n  - if: win\n    then:\n      - url: b\n        sha25: c\n"
        "build:\n  numbr: 1\nabout:\n  licence: MIT\n"
    )
    with pytest.raises(RecipeFault, match="a recipe has no key 'abut'") as caught:
        RecipeV1.from_text(text)
    faults = [(fault.at and fault.at.line, fault.hint) for fault in (caught.value, *caught.value.others)]
    assert [line for line, _ in faults] == [4, 9, 11, 13]
    assert [hint.split("'")[1] for _, hint in faults[1:]] == ["sha256", "number", "license"]
