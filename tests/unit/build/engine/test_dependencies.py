"""A pin to a package in host has the bounds of the version that the engine has solved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BuildFailed, RecipeFault
from kiln.build.engine.dependencies import (
    packages_in_rendered_recipe,
    pin_placeholder,
    pinnable_packages,
    pins_to_solve,
    replace_pin_placeholders,
    run_exports_from_build_tools,
    run_exports_of_package,
    simplified_depends,
)
from kiln.build.engine.metadata import rewrite_package_metadata
from kiln.build.engine.recipe import output_recipe
from kiln.build.steps import RunExport
from kiln.conda.package_reader import read_info_json
from kiln.recipe.rendered import Pin, Requirements
from tests import builders
from tests.packages import conda_package

if TYPE_CHECKING:
    from pathlib import Path


RENDERED = """\
recipe: {}
finalized_dependencies:
  build:
    resolved:
    - {name: gcc, version: '14', build: '0'}
  host:
    resolved:
    - {name: numpy, version: 2.4.6, build: py311_0}
    - name: short
      version: '5'
      build: h_1
"""


SOLVED = {"numpy": ("2.4.6", "py311_0"), "short": ("5", "h_1")}


NUMPY = Pin(name="numpy", subpackage=False)


@pytest.mark.parametrize(
    ("pin", "wanted"),
    [
        ({}, 'lower_bound="0", upper_bound=none'),
        ({"spec": "a 5.*"}, "a"),
        ({"min_pin": "x.x", "max_pin": "x", "by_engine": True}, 'lower_bound="x.x", upper_bound="x"'),
        ({"min_pin": None, "lower": "1.2", "upper": "3", "by_engine": True}, 'lower_bound="1.2", upper_bound="3"'),
        ({"max_pin": None, "by_engine": True}, 'lower_bound="x.x.x.x.x.x", upper_bound=none'),
        ({"exact": True, "by_engine": True}, "exact=true"),
    ],
)
def test_the_engine_solves_a_pin(pin: dict[str, Any], wanted: str) -> None:
    """Its own ones are those of a recipe.yaml; the others get their bounds afterwards."""
    expected = wanted if wanted == "a" else f'${{{{ pin_compatible("a", {wanted}) }}}}'
    assert pin_placeholder(Pin(name="a", subpackage=False, **pin)) == expected


@pytest.mark.parametrize(
    "pin",
    [
        Pin(name='a") ~ env.get("HOME', subpackage=False),
        Pin(name="a", subpackage=False, lower='1" ~ x ~ "', by_engine=True),
        Pin(name="a", subpackage=False, upper="3}}", by_engine=True),
    ],
)
def test_what_could_leave_the_engines_expression_is_refused(pin: Pin) -> None:
    with pytest.raises(RecipeFault):
        pin_placeholder(pin)


def test_a_pin_replaces_its_requirement_in_the_engines_recipe(tmp_path: Path) -> None:
    output = builders.output(
        "p",
        requirements=Requirements(host=("numpy",), run=("six 1.0", "numpy"), run_constrained=("numpy",)),
        run_exports={"weak_constrains": ("numpy",)},
        pins=(("run", 1, NUMPY), ("run_exports/weak_constrains", 0, NUMPY)),
    )
    recipe = output_recipe(output, recipe_folder=tmp_path, environment={})["requirements"]
    placeholder = pin_placeholder(NUMPY)
    assert (recipe["host"], recipe["run"]) == (["numpy"], ["six ==1.0", placeholder])
    assert (recipe["run_constraints"], recipe["run_exports"]) == (["numpy"], {"weak_constraints": [placeholder]})
    assert pins_to_solve(output) == (("run", NUMPY), ("run_exports/weak_constrains", NUMPY))


@pytest.mark.parametrize(
    ("specs", "pins", "wanted"),
    [
        (["a", "numpy >=0", "b"], [NUMPY], ["a", "numpy >=2.4.6,<3.0a0", "b"]),
        (["numpy", "numpy >=2.3"], [NUMPY], ["numpy >=2.4.6,<3.0a0", "numpy >=2.3"]),
        (["numpy >=0", "numpy >=0"], [NUMPY, NUMPY], ["numpy >=2.4.6,<3.0a0"]),
        (["b"], [NUMPY], ["b", "numpy >=2.4.6,<3.0a0"]),
        (["x"], [Pin(name="x", subpackage=False, spec="x  >=1  py*")], ["x >=1 py*"]),
        (["x"], [Pin(name="x", subpackage=False, spec="x 1.2")], ["x 1.2.*"]),
        (
            ["numpy"],
            [Pin(name="numpy", subpackage=False, min_pin="x.x", max_pin="x.x", spec="numpy 2.* py*")],
            ["numpy >=2.4,<2.5.0a0 py*"],
        ),
    ],
)
def test_placeholders_become_bounds(specs: list[str], pins: list[Pin], wanted: list[str]) -> None:
    assert replace_pin_placeholders(specs, pins, SOLVED) == wanted


def test_a_pin_to_a_package_that_is_not_solved_is_refused() -> None:
    with pytest.raises(RecipeFault, match="zlib is not in the host environment"):
        replace_pin_placeholders(["zlib >=0"], [Pin(name="zlib", subpackage=False)], SOLVED)


def test_a_package_gets_the_bounds_of_what_its_engine_recorded(tmp_path: Path) -> None:
    index = {"name": "p", "depends": ["numpy >=0", "lib ==1"], "constrains": ["short >=0"]}
    info = {"index.json": index, "run_exports.json": {"strong": ["numpy >=0"]}, "recipe/rendered_recipe.yaml": RENDERED}
    old = conda_package(tmp_path / "old.conda", info)
    assert pinnable_packages(packages_in_rendered_recipe(RENDERED.encode())) == SOLVED
    short = Pin(name="short", subpackage=False, exact=True)
    pins = (("run", NUMPY), ("run_constrained", short), ("run_exports/strong", NUMPY))
    rewrite_package_metadata(old, tmp_path / "new.conda", index={}, pins=pins)
    changed = read_info_json(tmp_path / "new.conda", "index.json")
    assert changed["depends"] == ["numpy >=2.4.6,<3.0a0", "lib 1"]
    assert changed["constrains"] == ["short 5 h_1"]
    assert read_info_json(tmp_path / "new.conda", "run_exports.json") == {"strong": ["numpy >=2.4.6,<3.0a0"]}


def test_without_a_host_environment_the_build_environment_counts() -> None:
    text = RENDERED[: RENDERED.index("  host:")] + "  host: null\n"
    assert pinnable_packages(packages_in_rendered_recipe(text.encode())) == {"gcc": ("14", "0")}


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        (["b", "a"], ["a", "b"]),
        (["a", "a >=1"], ["a >=1"]),
        (["a >=1", "a <3"], ["a <3", "a >=1"]),
        (["a", "a >=1", "a 1 h_0"], ["a 1 h_0"]),
        (["a 1 h_0", "a 1 h_0", "b"], ["a 1 h_0", "b"]),
        (["a 1.* h_0", "a >=1", "a 1 *_cp311"], ["a 1 *_cp311", "a 1.* h_0", "a >=1"]),
        (["a 1", "a >=1 h_0"], ["a 1", "a >=1 h_0"]),
        ([], []),
    ],
)
def test_an_exact_pin_and_a_version_count_before_less(specs: list[str], expected: list[str]) -> None:
    assert simplified_depends(specs) == expected


def test_two_exact_pins_that_differ_are_refused() -> None:
    with pytest.raises(RecipeFault, match="a is required in two exact builds"):
        simplified_depends(["a 1 h_0", "a 1 h_1"])


RECORD = """\
recipe: {}
finalized_dependencies:
  run:
    depends:
    - spec: zlib >=1.3,<2
      from: host
      run_export: zlib-devel
    - source: not an export
    constraints: []
"""


def test_run_exports_have_the_package_that_they_are_of(tmp_path: Path) -> None:
    package = conda_package(tmp_path / "kiln-compile-0-compile.conda", {"recipe/rendered_recipe.yaml": RECORD})
    assert run_exports_of_package(package) == (RunExport(spec="zlib >=1.3,<2", package="zlib-devel"),)


@pytest.mark.parametrize("record", ["", "finalized_dependencies: 1\n", "recipe: {}\n"])
def test_a_package_without_the_record_is_refused(record: str, tmp_path: Path) -> None:
    package = conda_package(tmp_path / "kiln-compile-0-compile.conda", {"recipe/rendered_recipe.yaml": record})
    with pytest.raises(BuildFailed, match="no record of its dependencies"):
        run_exports_of_package(package)


@pytest.mark.parametrize(
    ("spec", "exported"),
    [
        ("sysroot_linux-64 2.28.*", "__glibc >=2.28,<3.0.a0"),
        ("sysroot_linux-64 ==2.17", "__glibc >=2.17,<3.0.a0"),
        ("sysroot_linux-aarch64 2.28.*", "__glibc >=2.28,<3.0.a0"),
        ("macosx_deployment_target_osx-arm64 12.0.*", "__osx >=12.0"),
        ("x86_64-microarch-level 3", "_x86_64-microarch-level >=3"),
        ("sysroot_linux-64", None),
        ("sysroot_linux-ppc64le 2.28.*", None),
    ],
)
def test_what_the_tools_of_the_build_section_export(spec: str, exported: str | None) -> None:
    output = builders.output(requirements=Requirements(build=("gcc_linux-64 13.*", spec), host=("zlib",)))
    expected = [] if exported is None else [RunExport(spec=exported, package=spec.split(maxsplit=1)[0])]
    assert list(run_exports_from_build_tools(output)) == expected
