"""Converted recipes: real feedstocks, with proof, and in agreement with py-rattler-build."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import ConversionRefused
from kiln.feedstock import config_file
from kiln.feedstock.convert import convert
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import render
from kiln.recipe.render import build_platform
from tests.integration.test_recipe_v1 import answers, by_name, plain
from tests.unit.feedstock.convert.feedstocks import conversion

if TYPE_CHECKING:
    from kiln.recipe.feedstock import Feedstock

pytestmark = pytest.mark.slow("every config of a real feedstock is rendered in both formats")

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT.parent / "shared" / "golden"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/case.json"))
LEFT_OUT = ("about/doc_source_url",)
DIFFERING = {"faiss-split-2026-07-02": {("libfaiss", "requirements/build")}}
REFUSED = {"openmm-2023-04-23": 23}
MOST = 6  # configs of a feedstock that py-rattler-build renders, too


def golden(case: str, folder: Path) -> Feedstock:
    shutil.copytree(GOLDEN / case, folder, ignore=shutil.ignore_patterns("expected", "case.json"))
    shutil.copytree(GOLDEN / case / "expected" / "ci_support", folder / ".ci_support", dirs_exist_ok=True)
    return recipe_feedstock.load(folder)


def check_with_rattler_build(feedstock: Feedstock) -> None:
    """Compare what kiln and py-rattler-build render at some of the configs."""
    names = feedstock.config_names
    configs = [config_file.read_config(feedstock, name) for name in names[:: len(names) // MOST + 1]]
    beside = [str(path) for path in feedstock.recipe.glob("conda_build_config.yaml")]
    asked = [
        {
            "recipe": str(feedstock.recipe_v1),
            "files": [*beside, str(feedstock.config_folder / f"{config.name}.yaml")],
            "target": config.platform,
            "build": build_platform(feedstock, config.platform),
        }
        for config in configs
    ]
    for config, theirs in zip(configs, answers(asked), strict=True):
        ours = render.as_plain_data(render.render(feedstock, config))
        assert by_name([plain(output) for output in ours]) == by_name(theirs), config.name


@pytest.mark.skipif(not CASES, reason="shared/golden, the reference answers on real feedstocks, is not here")
@pytest.mark.parametrize("case", CASES)
def test_a_real_feedstock_is_converted_with_proof_or_told_why_not(case: str, tmp_path: Path) -> None:
    feedstock = golden(case, tmp_path / "a")
    if case in REFUSED:
        with pytest.raises(ConversionRefused) as refused:
            convert.convert(feedstock, leave_out=LEFT_OUT)
        assert refused.value.at is not None
        assert refused.value.at.line == REFUSED[case]
        return
    result = convert.convert(feedstock, leave_out=LEFT_OUT)
    differing = {(item.package, item.what) for item in result.blocking_differences}
    assert differing == DIFFERING.get(case, set())
    assert result.proof.packages > 0
    convert.write_conversion(feedstock, result)
    check_with_rattler_build(feedstock)


@pytest.mark.parametrize("name", ["single", "outputs"])
def test_rattler_build_renders_a_converted_recipe_as_kiln_does(name: str, tmp_path: Path) -> None:
    feedstock = conversion(name, tmp_path / "a")
    convert.write_conversion(feedstock, convert.convert(feedstock))
    check_with_rattler_build(feedstock)


def test_serving_is_the_same_in_both_formats(tmp_path: Path) -> None:
    for name in ("recipe", ".ci_support"):
        shutil.copytree(ROOT / "serving" / name, tmp_path / "a" / name)
    shutil.copyfile(ROOT / "serving" / "conda-forge.yml", tmp_path / "a" / "conda-forge.yml")
    feedstock = recipe_feedstock.load(tmp_path / "a")
    result = convert.convert(feedstock)
    assert (result.proof.holds, result.proof.configs, result.proof.packages) == (True, 4, 6)
    convert.write_conversion(feedstock, result)
    check_with_rattler_build(feedstock)
