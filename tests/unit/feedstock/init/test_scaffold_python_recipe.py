"""The recipes of a Python project have no lints, and both formats render to the same package."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kiln.feedstock import matrix
from kiln.feedstock.init import pypi, scaffold
from kiln.feedstock.init.scaffold import PlannedFiles, RecipeFormat, python_recipe
from kiln.feedstock.lint import check
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import render
from tests.unit.feedstock.init.test_pypi import GENERATED

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.feedstock.init.pypi import PythonProject
    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.rendered import Output

PROJECT = pypi.project_from_generated_recipe(GENERATED, mapped=True)
COMPILED = replace(PROJECT, noarch=False, entry_points=())
VARIANTS = (
    "python_min:\n  - '3.12'\nc_compiler:\n  - gcc\nc_compiler_version:\n  - '14'\nc_stdlib:\n  - sysroot\n"
    "c_stdlib_version:\n  - '2.17'\npython:\n  - 3.12.* *_cpython\n"
)


def made(folder: Path, project: PythonProject, form: RecipeFormat) -> Feedstock:
    recipe = python_recipe(project, form, ["jane", "org/team"])
    tool = "conda_build_tool: rattler-build\n" if form is RecipeFormat.V1 else ""
    files = {**recipe.files, "conda-forge.yml": tool, "recipe/conda_build_config.yaml": VARIANTS}
    scaffold.write_planned_files(folder, PlannedFiles(added=files))
    return recipe_feedstock.load(folder)


def rendered(feedstock: Feedstock) -> Output:
    config, *_ = (config for config in matrix.configs(feedstock, None, {}) if config.platform == "linux-64")
    (output,) = render.render(feedstock, config).outputs
    return output


@pytest.mark.parametrize("form", RecipeFormat)
@pytest.mark.parametrize("project", [PROJECT, COMPILED, replace(PROJECT, python_min="")], ids=["noarch", "c", "old"])
def test_a_recipe_has_no_lints(tmp_path: Path, project: PythonProject, form: RecipeFormat) -> None:
    feedstock = made(tmp_path / "f", project, form)
    for of_conda_forge in (False, True):
        messages = check.check(feedstock, of_conda_forge=of_conda_forge)
        assert [item for item in messages if item.at.file == form.recipe_path] == []


def test_both_formats_make_the_same_package(tmp_path: Path) -> None:
    outputs = [rendered(made(tmp_path / form.value, PROJECT, form)) for form in RecipeFormat]
    names = [(output.name, output.version) for output in outputs]
    assert names == [("foo-bar", "3.10")] * 2
    runs = [{spec.replace("==", "") for spec in output.requirements.run} for output in outputs]
    assert runs[0] == runs[1] == {"python >=3.12", "httpcore 1.*", "flatbuffers >=1.0"}


@pytest.mark.parametrize("form", RecipeFormat)
def test_foreign_text_renders_as_text(tmp_path: Path, form: RecipeFormat) -> None:
    about = {"summary": "runs {{ 1 // 0 }} ${{ 1 // 0 }}", "license": "MIT", "documentation": "https://x.example/"}
    text = python_recipe(replace(PROJECT, about=about), form, ["jane"]).files[form.recipe_path]
    assert "runs { { 1 // 0 }} ${ { 1 // 0 }}" in text
    assert rendered(made(tmp_path / "f", replace(PROJECT, about=about), form)).name == "foo-bar"


HOSTILE = "x{{ 1 // 0 }}${{ 1 // 0 }}{% if %}{# [nope] #}  # [nope]"


@pytest.mark.parametrize("form", RecipeFormat)
def test_foreign_text_is_harmless_wherever_it_comes_from(tmp_path: Path, form: RecipeFormat) -> None:
    about = dict.fromkeys(("homepage", "summary", "license", "documentation"), HOSTILE)
    project = replace(
        PROJECT,
        about=about,
        host=("pip", "foo ===1{{1 // 0}}"),
        run=("foo ===1{{1 // 0}}",),
        imports=(HOSTILE,),
        license_files=(HOSTILE, "[nope]"),
        entry_points=(HOSTILE, "a = a:b [nope]"),
        left_out=(HOSTILE, "foo[nope] ({{ 1 // 0 }})"),
    )
    text = python_recipe(project, form, ["jane"]).files[form.recipe_path]
    live = [line for line in text.splitlines() if "1 // 0" in line and ("{{" in line or "[" in line)]
    assert live == []
    assert rendered(made(tmp_path / "f", replace(project, host=("pip",), run=()), form)).name == "foo-bar"
