"""Feedstocks with a recipe.yaml are built by the engine on this machine, from a small channel, and tested."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import RecipeFault
from kiln.build.engine import run, worker
from kiln.build.engine.plan import plan_compile, plan_outputs
from kiln.build.steps import StagedFiles
from kiln.conda.package_reader import read_info_files
from kiln.feedstock import config_file
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import pins, render
from kiln.run import recipe_checks
from tests.integration.recipe_v1_feedstocks import CPU, ROOT, built, copied, index, kiln, require_same

pytestmark = pytest.mark.slow("feedstocks are built by kiln and by rattler-build")

GOLDEN = ROOT.parent / "shared" / "golden-v1"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/case.json"))
MOST = 4  # configs of a feedstock


def test_packages_are_those_that_rattler_build_makes(tmp_path: Path) -> None:
    root = copied("small-v1", tmp_path)
    built(root, CPU)
    require_same(root, tmp_path / "theirs", ["libplain", "plain-scripts", "plain"])
    packages = [str(path) for path in (root / "build_artifacts").glob("*/*.conda")]
    metadata = {name: data for package in packages for name, data in read_info_files(Path(package)).items()}
    own = str(root).encode()
    assert [name for name, data in metadata.items() if own in data] == ["paths.json"], "for the prefix"
    ended = kiln(root, "test", *packages)
    assert ended.returncode == 0, ended.stderr
    assert f"{len(packages)} packages" in ended.stdout


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The feedstock with staging outputs, fit to be released, with all of its configs built on this machine."""
    root = copied("small-v1-staging", tmp_path_factory.mktemp("staged"))
    (root / "outputs.txt").write_text("libstaged*\nstaged*\n")
    built(root, "--all")
    return root


def test_packages_that_inherit_are_those_that_rattler_build_makes(staged: Path, tmp_path: Path) -> None:
    order = ["libstaged", "libstaged-dev", "staged-plugin", "staged", "staged-alone"]
    require_same(staged, tmp_path / "theirs", order)


def steps(root: Path, config: str) -> list[str]:
    """Return the titles of a config's steps in the last run."""
    (log,) = (root / "build_artifacts" / "logs" / "0001").glob(f"{config}.log")
    return re.findall(r"=== (.*)", log.read_text())


def test_a_staging_output_is_compiled_once_for_all_pythons_that_it_does_not_use(staged: Path) -> None:
    titles = steps(staged, CPU)
    compiles = [title for title in titles if title.startswith("compile")]
    assert compiles == ["compile library", "compile bindings-python3.11", "compile bindings-python3.12"]
    assert titles.count("build staged") == 2, "one for each Python"


def test_run_exports_of_a_staging_output_go_to_the_packages_that_take_them(staged: Path) -> None:
    packages = sorted((staged / "build_artifacts" / "linux-64").glob("*.conda"))
    by_name = {index(package)["name"]: index(package)["depends"] for package in packages}
    assert by_name["libstaged"] == ["exporter >=2.5.1"]
    assert not any(spec.startswith("exporter") for spec in by_name["libstaged-dev"]), "it asks for none of them"
    assert by_name["staged"] == ["python"], "it ignores those of python"


def test_packages_are_published_verified_and_built_again_byte_for_byte(staged: Path, tmp_path: Path) -> None:
    channel = tmp_path / "published"
    ended = kiln(staged, "publish", "--to", str(channel))
    assert ended.returncode == 0, ended.stderr
    (package,) = channel.glob("linux-64/libstaged-2.0-cuda129_*.conda")
    verified = kiln(staged, "verify", str(package))
    assert verified.returncode == 0, verified.stderr
    rebuilt = kiln(staged, "rebuild", str(package))
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert "reproduced, byte for byte" in rebuilt.stdout


def test_debug_opens_the_script_of_a_staging_output_and_of_a_package(staged: Path) -> None:
    lines = './conda_build.sh >/dev/null 2>&1 && cat compiled.txt && test "$PWD" = "$SRC_DIR" && exit 7\n'
    ended = kiln(staged, "build", CPU, "--container", "none", "--debug", stdin=lines)
    assert ended.returncode == 7, ended.stderr
    assert ended.stdout.splitlines()[-1] == "compiled for None"
    lines = 'grep "bindings for" conda_build.sh\nexit 8\n'
    one = ("--output-id", "bindings-python3.12")
    ended = kiln(staged, "build", CPU, "--container", "none", "--debug", *one, stdin=lines)
    assert ended.returncode == 8, ended.stderr
    assert ended.stdout.splitlines()[-1] == 'echo "bindings for 3.12" >bindings.txt'
    lines = './conda_build.sh >/dev/null 2>&1 && cat "$PREFIX/share/bindings.txt"\nexit 9\n'
    one = ("--output-id", "staged-2.0-py311*")
    ended = kiln(staged, "build", CPU, "--container", "none", "--debug", *one, stdin=lines)
    assert ended.returncode == 9, ended.stderr
    assert ended.stdout.splitlines()[-1] == "bindings for 3.11"


def test_the_fleet_plans_it_and_other_engines_are_refused(staged: Path) -> None:
    ended = kiln(staged, "fleet", "plan", "--provider", "local", "--all", "--rebuild", "--container", "none")
    assert ended.returncode == 0, ended.stderr
    assert CPU in ended.stdout
    ended = kiln(staged, "build", CPU, "--container", "none", "--engine", "conda-build")
    assert ended.returncode == 2
    assert "conda-build cannot build a recipe.yaml" in ended.stderr


def test_what_no_build_honors_is_refused_with_its_line_before_anything_runs(staged: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(staged, tmp_path / "refused", ignore=shutil.ignore_patterns("build_artifacts")))
    recipe = root / "recipe" / "recipe.yaml"
    text = recipe.read_text() + "\ntests:\n  - script:\n      interpreter: cmd\n      content: dir\n"
    recipe.write_text(text)
    line = text.splitlines().index("      interpreter: cmd") + 1
    for words in (
        ("build", CPU, "--container", "none"),
        ("fleet", "plan", "--provider", "local", "--all", "--container", "none"),
    ):
        ended = kiln(root, *words)
        assert ended.returncode == RecipeFault.exit_code, ended.stderr
        assert f"recipe/recipe.yaml:{line}:20" in ended.stderr
        assert not (root / "build_artifacts" / "work").exists()


@pytest.mark.skipif(not CASES, reason="shared/golden-v1, the reference answers on real feedstocks, is not here")
@pytest.mark.parametrize("case", CASES)
def test_the_plan_of_a_real_feedstock_is_valid_for_the_engine(case: str, tmp_path: Path) -> None:
    root = Path(
        shutil.copytree(GOLDEN / case, tmp_path / case, ignore=shutil.ignore_patterns("expected", ".ci_support"))
    )
    shutil.copytree(GOLDEN / case / "expected" / "ci_support", root / ".ci_support")
    feedstock = recipe_feedstock.load(root)
    configs = sorted(path.stem for path in feedstock.config_folder.glob("linux_64*.yaml"))[:MOST]
    recipe_checks.require_supported_recipe(feedstock, configs)
    recipes: list[Any] = []
    expected: list[list[str]] = []
    for config in configs:
        plan = pins.close_static_pins(render.render(feedstock, config_file.read_config(feedstock, config)))
        folder, recipe = Path("/work"), feedstock.recipe
        for staging in plan.stagings:
            step = plan_compile(
                plan, staging, recipe_folder=recipe, folder=folder, channels=(), settings=Path("/settings")
            )
            recipes.append(step.recipe)
            expected.append(["kiln-compile", "0", "compile"])
        compiled = {staging.name: StagedFiles(folder=folder) for staging in plan.stagings}
        for package in plan_outputs(
            plan, recipe_folder=recipe, folder=folder, channels=(), compiled=compiled, extra={}
        ):
            worker.copy_packed_test_files(package.packed, recipe, tmp_path / "step" / worker.RECIPE)
            recipes.append(run.recipe_with_merged_secrets(package))
            output = package.output
            expected.append([output.name, output.version, output.build_string])
    assert configs
    argv = (sys.executable, "-m", "tests.integration.rattler_parses", str(tmp_path / "step"))
    ended = subprocess.run(argv, cwd=ROOT, input=json.dumps(recipes), text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == expected
