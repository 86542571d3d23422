"""kiln says of recipe.yaml what py-rattler-build says: which keys packages use, and what they are rendered to."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.feedstock import config_file, matrix, rerender
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import render
from tests.builders import FIXTURES

if TYPE_CHECKING:
    from kiln.recipe.feedstock import BuildConfig, Feedstock

pytestmark = pytest.mark.slow("every config of a real feedstock is rendered twice, by kiln and by rattler-build")

RECIPES = FIXTURES / "recipes_v1"
NAMES = sorted(path.name for path in RECIPES.iterdir())
FORGE = "conda_build_tool: rattler-build\nbuild_platform: {osx_arm64: osx_64}\nprovider: {linux_aarch64: default}\n"
VARIANTS = ("conda_build_config.yaml", "variants.yaml")
GOLDEN = FIXTURES.parents[2] / "shared" / "golden-v1"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/case.json"))
NARROWED = {"gdal-2026-07-14"}  # to one value of each key: the library takes minutes over all of its variants
PROGRAM = Path(__file__).with_name("rattler_answers.py")
EXPORTS = {"weak_constrains": "weak_constraints", "strong_constrains": "strong_constraints"}


def feedstock(name: str, folder: Path) -> Feedstock:
    shutil.copytree(RECIPES / name, folder / "recipe")
    (folder / "conda-forge.yml").write_text(FORGE)
    result = recipe_feedstock.load(folder)
    rerender.write_ci_support(result, matrix.configs(result))
    return result


def answers(asked: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    ended = subprocess.run(
        [sys.executable, PROGRAM], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    result: list[list[dict[str, Any]]] = json.loads(ended.stdout)
    return result


def plain(output: dict[str, Any]) -> dict[str, Any]:
    needs, exports = output["requirements"], output["run_exports"] or {}
    exports = {"weak": exports} if isinstance(exports, list) else exports
    return {
        **{key: output[key] for key in ("name", "version", "build", "build_number", "used")},
        "build_requirements": needs["build"],
        **{key: needs[key] for key in ("host", "run", "run_constrained")},
        "run_exports": {EXPORTS.get(kind, kind): specs for kind, specs in exports.items() if specs},
    }


def by_name(outputs: list[dict[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    return {(item["name"], item["version"], item["build"]): item for item in outputs}


def assert_rendered_as_by_rattler_build(result: Feedstock, configs: list[BuildConfig]) -> None:
    """Compare kiln's rendering of configs with the library's."""
    assert configs
    ours = [[plain(output) for output in render.as_plain_data(render.render(result, config))] for config in configs]
    beside = [str(path) for name in VARIANTS if (path := result.recipe / name).is_file()]
    asked = [
        {
            "recipe": str(result.recipe_v1),
            "files": [*beside, str(result.config_folder / f"{config.name}.yaml")],
            "target": config.platform,
            "build": render.build_platform(result, config.platform),
        }
        for config in configs
    ]
    for config, mine, theirs in zip(configs, ours, answers(asked), strict=True):
        expected = by_name(theirs)
        assert by_name(mine) == expected, config.name
        assert len(mine) == len(expected)


@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_rendered_as_rattler_build_renders_it(name: str, tmp_path: Path) -> None:
    result = feedstock(name, tmp_path)
    configs = [config_file.read_config(result, path.stem) for path in sorted(result.config_folder.glob("*.yaml"))]
    assert_rendered_as_by_rattler_build(result, configs)


@pytest.mark.skipif(not CASES, reason="shared/golden-v1, the reference answers on real feedstocks, is not here")
@pytest.mark.parametrize("case", CASES)
def test_a_real_feedstock_is_rendered_as_rattler_build_renders_it(case: str, tmp_path: Path) -> None:
    root = tmp_path / case
    shutil.copytree(GOLDEN / case, root, ignore=shutil.ignore_patterns("expected", ".ci_support"))
    shutil.copytree(GOLDEN / case / "expected" / "ci_support", root / ".ci_support")
    result = recipe_feedstock.load(root)
    for path in result.config_folder.glob("*.yaml") if case in NARROWED else ():
        path.write_text(re.sub(r"(?m)^(- .*\n)(?:- .*\n)+", r"\1", path.read_text()))
    configs = [config_file.read_config(result, path.stem) for path in sorted(result.config_folder.glob("*.yaml"))]
    assert_rendered_as_by_rattler_build(result, configs)


def test_the_recipes_have_more_than_one_config_and_output(tmp_path: Path) -> None:
    counts = {name: len(list(feedstock(name, tmp_path / name).config_folder.glob("*.yaml"))) for name in NAMES}
    assert counts == {"functions": 24, "noarch": 1, "outputs": 7, "pins": 5, "single": 22}
