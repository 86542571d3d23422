"""Requirements are printed as rattler-build 0.73 prints them; each row was asked of it."""

from __future__ import annotations

import pytest

from kiln.recipe.rendered import Pin
from kiln.recipe.v1.sections import canonical_spec, name_of_bare_requirement, parse_requirement


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
