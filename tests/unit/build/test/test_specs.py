"""Given an output, exactly this is installed and run to test it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BrokenPackage, TestsFailed
from kiln.build.test.specs import WheelName, plan_package_tests, read_packed_tests, require_wheel_for_python
from kiln.build.test.specs import shell_lines_of_test as lines_of
from kiln.recipe.rendered import OutputTest, Script
from tests import builders

if TYPE_CHECKING:
    from kiln.build.steps import TestStep


APP = builders.output(
    version="1.0",
    build_number=3,
    build_string="h_3",
    tests=(
        OutputTest(
            imports=("app.core",),
            script=Script(lines=("app --help",)),
            requires=("pip", "gcc_linux-64 14.*"),
            files=("t.c",),
        ),
    ),
)


def planned(available: set[str] | None = None) -> TestStep:
    (step,) = plan_package_tests(
        APP, recipe_folder=Path("/r"), folder=Path("/t"), prefix=Path("/p"), available=available
    )
    return step


def test_requirements_that_a_channel_lacks_are_omitted_with_a_note() -> None:
    step = planned({"pip", "app"})
    assert step.specs == ("app ==1.0 h_3", "pip")
    assert step.notes == ("tested without what this channel lacks: gcc_linux-64 14.*",)


def test_files_and_environment_are_the_recipes() -> None:
    step = planned()
    assert step.specs == ("app ==1.0 h_3", "pip", "gcc_linux-64 14.*"), "the very package, and what its tests require"
    assert (step.script[-2:], step.commands) == (("python -c 'import app.core'", "app --help"), 2)
    assert step.files == {"t.c": Path("/r/t.c")}
    assert step.environment["PREFIX"] == "/p"
    assert step.environment["PKG_VERSION"] == "1.0"


@pytest.mark.parametrize(
    ("language", "line"),
    [
        ("r", "Rscript -e 'library(m)'"),
        ("perl", "perl -e 'use m;'"),
        ("lua", "lua -e 'require \"m\"'"),
        ("ruby", "ruby -e 'require '\"'\"'m'\"'\"''"),
        ("python", "python -c 'import m'"),
    ],
)
def test_imports_are_in_the_language_of_the_test(language: str, line: str) -> None:
    test = OutputTest(language=language, imports=("m",), modules={"perl": ("n",)})
    assert lines_of(test, Path("/r")) == (line, "perl -e 'use n;'")


def test_scripts_run_before_commands_with_their_programs() -> None:
    scripts = {"run_test.sh": "check.sh", "run_test.py": "run_test.py", "run_test.pl": "run_test.pl"}
    test = OutputTest(script=Script(lines=("true",)), requires=("perl 5.*",), scripts=scripts)
    output = dataclasses.replace(APP, tests=(test,))
    (step,) = plan_package_tests(output, recipe_folder=Path("/r"), folder=Path("/t"), prefix=Path("/p"))
    assert step.script[-4:] == ("python -s run_test.py", "perl run_test.pl", ". ./run_test.sh", "true")
    assert step.specs == ("app ==1.0 h_3", "perl 5.*", "python")
    assert step.files["run_test.sh"] == Path("/r/check.sh")


def test_a_pattern_of_files_matches_at_any_depth(tmp_path: Path) -> None:
    builders.write_files(tmp_path, dict.fromkeys(("one.dat", "deep/two.dat", "deep/other"), ""))
    output = dataclasses.replace(APP, tests=(OutputTest(files=("*.dat", "../outside", "missing")),))
    (step,) = plan_package_tests(output, recipe_folder=tmp_path, folder=Path("/t"), prefix=Path("/p"))
    assert step.files == {
        **{name: tmp_path / name for name in ("one.dat", "deep/two.dat", "missing")},
        "outside": tmp_path / "../outside",
    }


def steps_of(*tests: OutputTest, recipe: Path = Path("/r")) -> tuple[TestStep, ...]:
    output = dataclasses.replace(APP, tests=tests, used={"flag": True, "__glibc": "__glibc >=2.17"})  # type: ignore[dict-item]
    return plan_package_tests(output, recipe_folder=recipe, folder=Path("/t"), prefix=Path("/p/app"))


def test_each_test_has_a_prefix_and_a_folder_of_its_own_and_each_python_too() -> None:
    steps = steps_of(
        OutputTest(imports=("a",), pip_check=True, pythons=("3.11", "3.12.*")), OutputTest(contents={"bin": []})
    )
    assert [(step.prefix, step.folder) for step in steps] == [
        (Path("/p/app"), Path("/t")),
        (Path("/p/app-1"), Path("/t-1")),
        (Path("/p/app-2"), Path("/t-2")),
    ]
    assert [step.specs[1:] for step in steps] == [("pip", "python 3.11.*"), ("pip", "python 3.12.*"), ()]
    assert steps[0].script[-2:] == ("python -c 'import a'", "pip check")
    assert [(step.commands, step.checked) for step in steps] == [(2, 0), (2, 0), (0, 1)]
    assert steps[2].environment["PREFIX"] == "/p/app-2"


@pytest.mark.parametrize(("language", "package"), [("perl", "perl"), ("r", "r-base"), ("ruby", "ruby")])
def test_modules_of_other_languages_require_their_program(language: str, package: str) -> None:
    (step,) = steps_of(OutputTest(modules={language: ("X::Y",)}))
    assert step.specs[1:] == (package,)
    assert "X::Y" in step.script[-1]


def test_build_requirements_of_a_test_have_a_prefix_beside(tmp_path: Path) -> None:
    builders.write_files(tmp_path / "data", dict.fromkeys(("a.txt", "b.txt", "c.dat"), ""))
    test = OutputTest(
        script=Script(file="check.py"), requires_build=("make 4",), files=("data/*.txt", "one"), by_engine=True
    )
    (step,) = steps_of(test, recipe=tmp_path)
    assert (step.build_specs, step.build_prefix) == (("make ==4",), Path("/p/app-build"))
    assert 'export PATH="$BUILD_PREFIX/bin:$PATH"' in step.script
    assert step.script[-1] == f"python {tmp_path}/check.py"
    assert step.files == {name: tmp_path / name for name in ("data/a.txt", "data/b.txt", "one")}


def test_the_variant_is_in_the_environment_as_scripts_of_builds_see_it() -> None:
    (step,) = steps_of(OutputTest(imports=("a",)))
    assert step.environment["flag"] == "true"
    assert "__glibc" not in step.environment


def test_source_files_are_those_in_the_package() -> None:
    given = OutputTest(script=Script(lines=("true",)), source_files=("a",))
    assert [step.files_of for step in steps_of(given, OutputTest())] == ["app", ""]


# As rattler-build 0.73 writes it, with two entries of package_contents, which it leaves out.
RATTLER = """\
- python:
    imports:
    - a.b
- python:
    imports:
    - a
    pip_check: false
    python_version: '3.11'
- python:
    python_version:
    - '3.11'
    - 3.12.*
- perl:
    uses:
    - X::Y
- r:
    libraries:
    - l
- ruby:
    requires:
    - q
- script:
    interpreter: python
    env:
      NAME: value
    content: |
      import os
      print(os.environ["NAME"])
    cwd: etc/conda/test-files/a/1
  requirements:
    run:
    - dep ==1
    build:
    - make
  files:
    recipe:
    - x
- script:
  - echo one
  - test -f x
- package_contents:
    files:
    - x
- downstream: other
"""


def of(folder: Path, text: str) -> tuple[OutputTest, ...]:
    builders.write_files(folder, {"tests/tests.yaml": text})
    return read_packed_tests(folder)


def test_the_layout_of_rattler_build(tmp_path: Path) -> None:
    assert of(tmp_path, RATTLER) == (
        OutputTest(imports=("a.b",), pip_check=True, by_engine=True),
        OutputTest(imports=("a",), pythons=("3.11",), by_engine=True),
        OutputTest(pip_check=True, pythons=("3.11", "3.12.*"), by_engine=True),
        OutputTest(modules={"perl": ("X::Y",)}, by_engine=True),
        OutputTest(modules={"r": ("l",)}, by_engine=True),
        OutputTest(modules={"ruby": ("q",)}, by_engine=True),
        OutputTest(
            script=Script(
                lines=('import os\nprint(os.environ["NAME"])\n',),
                interpreter="python",
                environment={"NAME": "value"},
                folder="etc/conda/test-files/a/1",
            ),
            requires=("dep ==1",),
            requires_build=("make",),
            by_engine=True,
        ),
        OutputTest(script=Script(lines=("echo one", "test -f x")), by_engine=True),
    )


def test_the_layout_of_conda_build(tmp_path: Path) -> None:
    assert read_packed_tests(tmp_path) == ()
    files = dict.fromkeys(("run_test.sh", "run_test.py", "data"), "")
    builders.write_files(tmp_path / "test", {**files, "test_time_dependencies.json": '["dep 1"]'})
    scripts = {"run_test.py": "run_test.py", "run_test.sh": "run_test.sh"}
    assert read_packed_tests(tmp_path) == (OutputTest(scripts=scripts, requires=("dep 1.*",)),)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("tests/tests.yaml", "- script:\n    content: x\n    interpreter: cmd\n", "the interpreter 'cmd'"),
        ("tests/tests.yaml", "- script:\n    file: x.sh\n", "has no content"),
        ("tests/tests.yaml", "- lua:\n    imports: [x]\n", "of the kind 'lua' are not supported"),
        ("tests/tests.yaml", "- text\n", ""),
        ("tests/tests.yaml", "{", ""),
        ("test/test_time_dependencies.json", "3", ""),
    ],
)
def test_tests_that_cannot_be_run_are_an_error(tmp_path: Path, name: str, text: str, why: str) -> None:
    builders.write_files(tmp_path, {name: text, "test/run_test.sh": ""})
    with pytest.raises(BrokenPackage, match="cannot be run") as refused:
        read_packed_tests(tmp_path)
    assert why in refused.value.what


def test_a_name_is_parsed() -> None:
    result = WheelName.from_path(Path("/x/tensorflow_cpu-2.21.0-cp311-cp311-manylinux_2_27_x86_64.whl"))
    assert (result.name, result.version, result.python) == ("tensorflow_cpu", "2.21.0", "cp311")
    assert result.tags == "cp311-cp311-manylinux_2_27_x86_64"
    with pytest.raises(BrokenPackage, match=r"invalid wheel name: x\.whl"):
        WheelName.from_path(Path("x.whl"))


@pytest.mark.parametrize("tags", ["cp311-cp311", "py3-none", "cp39-abi3"])
def test_a_wheel_may_be_for_the_python_of_its_config(tags: str) -> None:
    require_wheel_for_python(WheelName.from_path(Path(f"a-1-{tags}-any.whl")), "3.11")
    with pytest.raises(TestsFailed, match="is for cp312"):
        require_wheel_for_python(WheelName.from_path(Path("a-1-cp312-cp312-any.whl")), "3.11")
