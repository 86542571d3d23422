"""Rendered packages that conda-build refuses are refused, with the place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import KilnError, RecipeFault
from kiln.feedstock import config_file, matrix
from kiln.feedstock.lint import check
from kiln.recipe import render
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path


PACKAGE = "package:\n  name: a\n  version: 1\n"
ONE = "  - name: {}\n    requirements:\n      {}:\n        - {}\n"
THREE = "outputs:\n" + "".join(ONE.format(name, "run", other) for name, other in ("bc", "cd", "db"))
TWO = "outputs:\n" + ONE.format("b", "run", "c") + ONE.format("c", "host", "b")


def rendered(folder: Path, meta: str) -> list[dict[str, Any]]:
    feedstock = builders.feedstock(folder, meta)
    (config,) = matrix.configs(feedstock)
    return render.as_plain_data(render.render(feedstock, config))


@pytest.mark.parametrize(
    ("meta", "what", "line"),
    [
        ("package:\n  name: a\n", "a has no version", 1),
        ("package:\n  name: a\n  version: .1\n", "a has the version '.1'", 1),
        ("package:\n  name: a\noutputs:\n  - name: b\n", "b has no version", 3),
        (f"{PACKAGE}build:\n  noarch: none\n", "noarch is 'none'", 4),
        (f"{PACKAGE}requirements:\n  run:\n    - a >=1\n", "'a >=1' in requirements/run", 4),
        (f"{PACKAGE}requirements:\n  host:\n    - b >=1,,<2\n", "'b >=1,,<2' in requirements/host", 4),
        (f"{PACKAGE}requirements:\n  run_constrained:\n    - b >=1.0<2\n", "in requirements/run_constrained", 4),
        (f"{PACKAGE}requirements:\n  run:\n    -\n    - b\n", "requirements/run has an empty item", 4),
        (f"{PACKAGE}outputs:\n  - name: b\n    requirements:\n      run:\n        -\n", "has an empty item", 4),
        (PACKAGE + TWO, "the outputs [bc] and [bc] require each other", 4),
        (PACKAGE + THREE, "the outputs [bcd], [bcd] and [bcd] require each other", 4),
        (f"{PACKAGE}outputs:\n  - name: b\n    target: ../up\n", "target is '../up'", 4),
    ],
)
def test_an_invalid_package_is_refused(tmp_path: Path, meta: str, what: str, line: int) -> None:
    with pytest.raises(RecipeFault, match=what) as caught:
        rendered(tmp_path, meta)
    assert caught.value.at is not None
    assert caught.value.at.line == line


def test_a_version_without_a_value_is_rendered_and_not_built(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, "package:\n  name: a\n  version: {{ environ.get('A_VERSION') }}\n")
    (config,) = matrix.configs(feedstock)
    renderings = [render.render(feedstock, config)]
    assert renderings[0].outputs[0].version == "None"
    with pytest.raises(RecipeFault, match="a has the version 'None'"):
        render.require_supported_keys(renderings, own_engine=True)
    render.require_supported_keys(renderings, own_engine=False)


def test_a_cross_compiled_output_may_require_another_of_the_build_platform(tmp_path: Path) -> None:
    outputs = TWO.replace("run:", "build:").replace("host:", "build:")
    with pytest.raises(RecipeFault, match="require each other"):
        rendered(tmp_path / "native", PACKAGE + outputs)
    feedstock = builders.feedstock(
        tmp_path / "cross",
        PACKAGE + outputs,
        forge="build_platform:\n  linux_aarch64: linux_64\nprovider:\n  linux_64: null\n  linux_aarch64: azure\n",
        files={".ci_support/linux_aarch64_.yaml": "target_platform:\n- linux-aarch64\n"},
    )
    config = config_file.read_config(feedstock, "linux_aarch64_")
    assert {output["name"] for output in render.as_plain_data(render.render(feedstock, config))} == {"b", "c"}


def test_the_legacy_noarch_python_is_no_noarch_of_conda_build(tmp_path: Path) -> None:
    (output,) = rendered(tmp_path, f"{PACKAGE}build:\n  noarch_python: true\n")
    assert (output["noarch"], output["subdir"]) == (None, "noarch")


def test_an_output_that_names_itself_is_rendered_without_it(tmp_path: Path) -> None:
    (output,) = rendered(tmp_path, f"{PACKAGE}outputs:\n  - name: b\n    requirements:\n      run:\n        - b\n")
    assert output["requirements"]["run"] == []


def test_text_in_the_place_of_a_list_stays_text(tmp_path: Path) -> None:
    test = "test:\n  imports: i\n  commands: c\n  requires: r\n"
    (output,) = rendered(tmp_path / "a", f"{PACKAGE}build:\n  run_exports: x\n  noarch: true\n{test}")
    assert (output["run_exports"], output["noarch"]) == ("x", True)
    assert output["test"] == {"imports": "i", "commands": "c", "requires": "r"}
    (output,) = rendered(tmp_path / "b", f"{PACKAGE}build:\n  run_exports:\n    weak: x\n    strong:\n      - y\n")
    assert output["run_exports"] == {"weak": "x", "strong": ["y"]}


def test_the_target_of_an_output_is_its_subdir(tmp_path: Path) -> None:
    (output,) = rendered(tmp_path, f"{PACKAGE}outputs:\n  - name: b\n    target: win-64\n")
    assert output["subdir"] == "win-64"


def test_the_build_machine_decides_the_compilers_that_no_variant_names(tmp_path: Path) -> None:
    feedstock = builders.feedstock(
        tmp_path,
        f"{PACKAGE}requirements:\n  build:\n    - {{{{ compiler('c') }}}}\n",
        forge="build_platform:\n  osx_64: linux_64\n",
        files={
            f".ci_support/{name}_.yaml": f"target_platform:\n- {name.replace('_', '-')}\n"
            for name in ("osx_64", "osx_arm64")
        },
    )
    compilers = [
        render.render(feedstock, config_file.read_config(feedstock, name)).outputs[0].requirements.build
        for name in ("osx_64_", "osx_arm64_")
    ]
    assert compilers == [("gcc_osx-64",), ("clang_osx-arm64",)]


def test_an_interpreter_of_an_outputs_test_is_ignored_with_a_warning(tmp_path: Path) -> None:
    meta = f"{PACKAGE}outputs:\n  - name: b\n    test:\n      script: t.py\n      script_interpreter: python\n"
    feedstock = builders.feedstock(tmp_path, meta, files={"recipe/t.py": ""})
    rendering = render.render(feedstock, *matrix.configs(feedstock))
    (warning,) = rendering.warnings
    assert warning.startswith("recipe/meta.yaml:4:1: the test of the output b has a script_interpreter")
    assert rendering.key_faults == ()


def test_tests_of_an_output_with_the_recipes_name_are_ignored_with_a_warning(tmp_path: Path) -> None:
    tested = "  - name: {}\n    test:\n      commands:\n        - true\n"
    meta = f"{PACKAGE}outputs:\n{tested.format('a')}{tested.format('b')}"
    feedstock = builders.feedstock(tmp_path, meta)
    (config,) = matrix.configs(feedstock)
    rendering = render.render(feedstock, config)
    (warning,) = rendering.warnings
    assert "recipe/meta.yaml:4:1: the tests of the output a are ignored" in warning
    assert [output.name for output in rendering.outputs if any(test.script.lines for test in output.tests)] == ["b"]
    assert [(str(problem.at), problem.id) for problem in check.check(feedstock) if problem.id == "kiln-test"] == [
        ("recipe/meta.yaml:6:5", "kiln-test")
    ]


def test_an_item_with_a_colon_is_refused_with_its_line_and_all_at_once(tmp_path: Path) -> None:
    commands = 'test:\n  commands:\n    - ok\n    - echo "a: b"\nrequirements:\n  run:\n    - foo: 1.2\n'
    output = "outputs:\n  - name: b\n    build:\n      script:\n        - echo c: d\n"
    feedstock = builders.feedstock(tmp_path, PACKAGE + commands + output)
    with pytest.raises(KilnError) as caught:
        matrix.configs(feedstock)
    for place in ("7:7: test/commands", "10:7: requirements/run", "15:11: build/script"):
        assert f"recipe/meta.yaml:{place} has a mapping instead of text" in str(caught.value)
    problems = {(problem.at.line, problem.at.column) for problem in check.check(feedstock) if problem.id == "kiln-type"}
    assert {(7, 7), (15, 11)} <= problems
