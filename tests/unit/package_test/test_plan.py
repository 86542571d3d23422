"""Given an output, exactly this is installed and run to test it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.model.rendered import Output, OutputTest, Script
from kiln.package_test.plan import plan
from kiln.package_test.plan import test_lines as lines_of

if TYPE_CHECKING:
    from kiln.model.plan import TestStep

APP = Output(
    name="app",
    version="1.0",
    build_number=3,
    build_string="h_3",
    subdir="linux-64",
    run_exports={},
    about={},
    used={},
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
    (step,) = plan(APP, recipe_folder=Path("/r"), folder=Path("/t"), prefix=Path("/p"), available=available)
    return step


def test_the_very_package_is_installed_with_what_its_tests_require() -> None:
    assert planned().specs == ("app ==1.0 h_3", "pip", "gcc_linux-64 14.*")


def test_imports_run_before_commands() -> None:
    assert planned().script[-2:] == ("python -c 'import app.core'", "app --help")
    assert planned().commands == 2


def test_requirements_that_a_channel_lacks_are_omitted_with_a_note() -> None:
    step = planned({"pip", "app"})
    assert step.specs == ("app ==1.0 h_3", "pip")
    assert step.notes == ("tested without gcc_linux-64 14.*, which this channel lacks",)


def test_files_and_environment_are_the_recipes() -> None:
    step = planned()
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
    test = OutputTest(script=Script(lines=("true",)), requires=("perl 5",), scripts=scripts)
    output = dataclasses.replace(APP, tests=(test,))
    (step,) = plan(output, recipe_folder=Path("/r"), folder=Path("/t"), prefix=Path("/p"))
    assert step.script[-4:] == ("python -s run_test.py", "perl run_test.pl", ". ./run_test.sh", "true")
    assert step.specs == ("app ==1.0 h_3", "perl ==5", "python")
    assert step.files["run_test.sh"] == Path("/r/check.sh")


def test_a_pattern_of_files_matches_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("one.dat", "deep/two.dat", "deep/other"):
        (tmp_path / name).touch()
    output = dataclasses.replace(APP, tests=(OutputTest(files=("*.dat", "../outside", "missing")),))
    (step,) = plan(output, recipe_folder=tmp_path, folder=Path("/t"), prefix=Path("/p"))
    assert step.files == {
        **{name: tmp_path / name for name in ("one.dat", "deep/two.dat", "missing")},
        "outside": tmp_path / "../outside",
    }
