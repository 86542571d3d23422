"""The license files that a failed build lacked are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.build.engine import failures, run
from kiln.build.engine.failures import ENGINE_FOLDER
from kiln.build.steps import BuildStep
from kiln.recipe.rendered import BuildPlatforms, Output, Requirements, Script

if TYPE_CHECKING:
    from pathlib import Path

REASON = "PyRattlerBuildError: No license files were copied"


def a_step(tmp_path: Path, entries: object) -> BuildStep:
    work, recipe = tmp_path / "step" / ENGINE_FOLDER / "a_1" / "work", tmp_path / "recipe"
    (work / "licenses").mkdir(parents=True)
    (work / "licenses" / "MIT.txt").touch()
    recipe.mkdir()
    (recipe / "NOTICE").touch()
    output = Output(
        name="a",
        version="1",
        build_number=0,
        build_string="0",
        subdir="noarch",
        requirements=Requirements(),
        script=Script(),
        used={},
        run_exports={},
        about={},
    )
    return BuildStep(
        output=output,
        recipe={"about": {"license_file": entries}},
        folder=tmp_path / "step",
        channels=(),
        environment={},
        index={},
        platforms=BuildPlatforms(target="linux-64", build="linux-64"),
        recipe_folder=recipe,
    )


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        ("LICENSE", "LICENSE"),
        (["licenses/MIT.txt", "COPYING", "NOTICE", "licenses/*.md", "licenses/"], "COPYING, licenses/*.md"),
        (list("abcdefg"), "a, b, c, d, e and 2 more"),
    ],
)
def test_the_missing_files_are_named(tmp_path: Path, entries: object, names: str) -> None:
    error = run.build_step_error(a_step(tmp_path, entries), REASON, "")
    expected = f"a could not be built: about/license_file: neither in the sources nor in the recipe: {names}"
    assert (error.what, "recipe's folder" in error.hint) == (expected, True)


@pytest.mark.parametrize("entries", [["licenses/*.txt"], ["/etc/x"], ["${{ SRC_DIR }}/x"], None])
def test_where_none_is_missing_the_engines_words_stay(tmp_path: Path, entries: object) -> None:
    step = a_step(tmp_path, entries)
    assert failures.missing_licenses_message(step) == ""
    assert run.build_step_error(step, REASON, "").what == "a could not be built: No license files were copied"
