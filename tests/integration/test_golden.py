"""Real feedstocks: kiln's files, outputs, lints and conversions are those of the reference tools."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import limits
from kiln.base.errors import ConversionRefused, PinningNeeded
from kiln.cli.main import run
from kiln.feedstock import config_file, matrix, rerender
from kiln.feedstock.convert import convert
from kiln.feedstock.lint import check
from kiln.recipe import render
from kiln.recipe.feedstock import load
from kiln.recipe.render import build_platform
from tests.builders import FIXTURES
from tests.unit.feedstock.convert.feedstocks import conversion

if TYPE_CHECKING:
    from kiln.recipe.feedstock import BuildConfig, Feedstock

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT.parent / "shared" / "golden"
GOLDEN_V1 = GOLDEN.with_name("golden-v1")
CASES, CASES_V1 = (sorted(path.parent.name for path in root.glob("*/case.json")) for root in (GOLDEN, GOLDEN_V1))


@pytest.mark.skipif(not CASES, reason="shared/golden, the reference answers on real feedstocks, is not here")
@pytest.mark.parametrize("case", CASES)
def test_a_real_feedstock_is_rerendered_and_rendered_as_the_reference_tools_do(case: str, tmp_path: Path) -> None:
    argv = [sys.executable, str(GOLDEN / "judge.py"), str(GOLDEN), "--only", case]
    argv += ["--kiln", f"{sys.executable} -m kiln", "--json", str(tmp_path / "figures.json")]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())["totals"]
    assert figures["files_equal"] == figures["files"] > 0
    assert figures["configs_equal"] == figures["configs"]


@pytest.mark.skipif(not CASES_V1, reason="shared/golden-v1, the reference answers on real feedstocks, is not here")
@pytest.mark.parametrize("case", CASES_V1)
def test_a_real_feedstock_with_a_recipe_yaml_is_rerendered_as_by_conda_smithy(case: str, tmp_path: Path) -> None:
    argv = [sys.executable, str(GOLDEN / "judge.py"), str(GOLDEN_V1), "--only", case, "--no-render"]
    argv += ["--kiln", f"{sys.executable} -m kiln", "--json", str(tmp_path / "figures.json")]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())["totals"]
    assert figures["files_equal"] == figures["files"] > 0


@pytest.mark.skipif(not CASES, reason="shared/golden, the reference answers on real feedstocks, is not here")
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "bare"])
@pytest.mark.parametrize("case", CASES)
def test_a_real_feedstock_is_left_as_it_is_without_its_pinning(case: str, committed: bool, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(GOLDEN / case, tree, ignore=shutil.ignore_patterns("expected", "case.json"))
    if committed:
        shutil.copytree(GOLDEN / case / "expected" / "ci_support", tree / ".ci_support", dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    assert run(["-C", str(tree), "rerender", "--pinning-channel", "none"]) == PinningNeeded.exit_code
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


SHARED = Path(__file__).parents[3] / "shared"
ANSWERS = SHARED / "lint" / "expected.json"
EXPECTED: dict[str, dict[str, list[str]]] = json.loads(ANSWERS.read_text()) if ANSWERS.is_file() else {}
LINT_CASES = sorted({label.rpartition("/")[0] for label in EXPECTED})
OURS = {"recipe": ROOT, "serving": ROOT / "serving"}
_NOT_READ = re.compile(r"(?m)^bot:\n(?:[ \t].*\n?)+")  # its schema is not conda-smithy's


def tree(label: str, folder: Path) -> Path:
    """Write the feedstock of a label, such as ``golden/CASE/CHANGE``."""
    kind, case, change = label.split("/")
    shutil.copytree(SHARED / kind / case, folder, ignore=shutil.ignore_patterns("expected", "case.json"))
    for recipe in (SHARED / "lint" / case).glob(f"{change}.*.yaml"):
        target = folder / "recipe" / recipe.name.partition(".")[2]
        target.unlink(missing_ok=True)
        shutil.copyfile(recipe, target)
    settings = folder / "conda-forge.yml"
    if settings.exists():
        text = _NOT_READ.sub("", settings.read_text())
        settings.unlink()
        settings.write_text(text)
    return folder


def lint_ids(folder: Path) -> dict[str, list[str]]:
    """Return the ids of the messages, without kiln's own."""
    messages = limits.run_bounded(lambda: check.check(load(folder)))
    return {
        f"{severity}s": sorted(
            {message.id for message in messages if message.severity == severity and not message.id.startswith("kiln-")}
        )
        for severity in ("lint", "hint")
    }


@pytest.mark.slow("a real recipe is rendered for its lints")
@pytest.mark.skipif(not LINT_CASES, reason="shared/lint, the answers of conda-smithy's linter, is not here")
@pytest.mark.parametrize("case", LINT_CASES)
def test_a_real_recipe_gets_the_ids_that_conda_smithy_gives(case: str, tmp_path: Path) -> None:
    labels = [label for label in EXPECTED if label.rpartition("/")[0] == case]
    answers = {label: lint_ids(tree(label, tmp_path / label.rpartition("/")[2])) for label in labels}
    expected = {label: {kind: sorted(set(EXPECTED[label][kind])) for kind in ("lints", "hints")} for label in labels}
    assert answers == expected


def documented(name: str) -> set[str]:
    """Return the ids of the messages about this project's recipe in ``name/`` that docs/reference/lint.md explains."""
    page = (ROOT / "docs" / "reference" / "lint.md").read_text()
    table = page.partition("## Messages about this project's recipes")[2]
    rows = re.findall(r"(?m)^\| ([A-Z]+-\d+): (?!.*conda-smithy's alone)(.*?) \|", table)
    # A message that only one of them has names its folder; own workflows are next to recipe/ alone.
    return {id_ for id_, text in rows if name in text or not ("recipe/" in text or "serving/" in text)} - (
        {"CF-005"} if name == "serving" else set()
    )


@pytest.mark.slow("a real recipe is rendered for its lints")
@pytest.mark.parametrize("name", OURS)
def test_our_recipes_have_only_the_messages_that_the_page_explains(name: str) -> None:
    messages = limits.run_bounded(lambda: check.check(load(OURS[name]), of_conda_forge=True))
    found = {message.id for message in messages}
    assert {item for item in found if not item.startswith("kiln-")} == documented(name)
    assert len(documented(name)) >= 2


RECIPES = FIXTURES / "recipes_v1"
NAMES = sorted(path.name for path in RECIPES.iterdir())
FORGE = "conda_build_tool: rattler-build\nbuild_platform: {osx_arm64: osx_64}\nprovider: {linux_aarch64: default}\n"
VARIANTS = ("conda_build_config.yaml", "variants.yaml")
NARROWED = {"gdal-2026-07-14"}  # to one value of each key: the library takes minutes over all of its variants
PROGRAM = Path(__file__).with_name("rattler_answers.py")
EXPORTS = {"weak_constrains": "weak_constraints", "strong_constrains": "strong_constraints"}


def expanded(name: str, folder: Path) -> Feedstock:
    shutil.copytree(RECIPES / name, folder / "recipe")
    (folder / "conda-forge.yml").write_text(FORGE)
    result = load(folder)
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


@pytest.mark.slow("every config of a real feedstock is rendered twice, by kiln and by rattler-build")
@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_rendered_as_rattler_build_renders_it(name: str, tmp_path: Path) -> None:
    result = expanded(name, tmp_path)
    configs = [config_file.read_config(result, path.stem) for path in sorted(result.config_folder.glob("*.yaml"))]
    assert_rendered_as_by_rattler_build(result, configs)


@pytest.mark.slow("every config of a real feedstock is rendered twice, by kiln and by rattler-build")
@pytest.mark.skipif(not CASES_V1, reason="shared/golden-v1, the reference answers on real feedstocks, is not here")
@pytest.mark.parametrize("case", CASES_V1)
def test_a_real_feedstock_is_rendered_as_rattler_build_renders_it(case: str, tmp_path: Path) -> None:
    root = tmp_path / case
    shutil.copytree(GOLDEN_V1 / case, root, ignore=shutil.ignore_patterns("expected", ".ci_support"))
    shutil.copytree(GOLDEN_V1 / case / "expected" / "ci_support", root / ".ci_support")
    result = load(root)
    for path in result.config_folder.glob("*.yaml") if case in NARROWED else ():
        path.write_text(re.sub(r"(?m)^(- .*\n)(?:- .*\n)+", r"\1", path.read_text()))
    configs = [config_file.read_config(result, path.stem) for path in sorted(result.config_folder.glob("*.yaml"))]
    assert_rendered_as_by_rattler_build(result, configs)


@pytest.mark.slow("every config of a real feedstock is rendered twice, by kiln and by rattler-build")
def test_the_recipes_have_more_than_one_config_and_output(tmp_path: Path) -> None:
    counts = {name: len(list(expanded(name, tmp_path / name).config_folder.glob("*.yaml"))) for name in NAMES}
    assert counts == {"functions": 24, "noarch": 1, "outputs": 7, "pins": 5, "single": 22}


LEFT_OUT = ("about/doc_source_url",)
DIFFERING = {
    "faiss-split-2026-07-02": {("libfaiss", "requirements/build")},
    "tensorflow-2021-10-29": {("all packages", "builds after kiln rerender")},
}
REFUSED = {"openmm-2023-04-23": 23}
MOST = 6  # configs of a feedstock that py-rattler-build renders, too


def golden(case: str, folder: Path) -> Feedstock:
    shutil.copytree(GOLDEN / case, folder, ignore=shutil.ignore_patterns("expected", "case.json"))
    shutil.copytree(GOLDEN / case / "expected" / "ci_support", folder / ".ci_support", dirs_exist_ok=True)
    return load(folder)


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


@pytest.mark.slow("every config of a real feedstock is rendered in both formats")
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


@pytest.mark.slow("every config of a real feedstock is rendered in both formats")
@pytest.mark.parametrize("name", ["single", "outputs"])
def test_rattler_build_renders_a_converted_recipe_as_kiln_does(name: str, tmp_path: Path) -> None:
    feedstock = conversion(name, tmp_path / "a")
    convert.write_conversion(feedstock, convert.convert(feedstock))
    check_with_rattler_build(feedstock)


@pytest.mark.slow("every config of a real feedstock is rendered in both formats")
def test_serving_is_the_same_in_both_formats(tmp_path: Path) -> None:
    for name in ("recipe", ".ci_support"):
        shutil.copytree(ROOT / "serving" / name, tmp_path / "a" / name)
    shutil.copyfile(ROOT / "serving" / "conda-forge.yml", tmp_path / "a" / "conda-forge.yml")
    feedstock = load(tmp_path / "a")
    result = convert.convert(feedstock)
    assert (result.proof.holds, result.proof.configs, result.proof.packages) == (True, 4, 6)
    convert.write_conversion(feedstock, result)
    check_with_rattler_build(feedstock)
