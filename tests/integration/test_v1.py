"""Feedstocks with a recipe.yaml: built here and in containers, tested downstream, equal in both formats."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import BrokenPackage, KilnError, RecipeFault, TestsFailed
from kiln.base.yaml import ScalarInterpretation, parse_document
from kiln.build.engine import run, worker
from kiln.build.engine.plan import plan_compile, plan_outputs
from kiln.build.executor import environment
from kiln.build.steps import StagedFiles
from kiln.conda import package_reader
from kiln.conda.package_reader import read_info_files, read_info_json
from kiln.feedstock import config_file
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import pins, render
from kiln.run import recipe_checks
from tests.integration.matrix.helpers import BASE, usable
from tests.integration.recipe_v1_feedstocks import (
    CPU,
    FIXTURES,
    PLACEHOLDER,
    ROOT,
    built,
    channel,
    contents,
    copied,
    depends,
    in_v1,
    index,
    kiln,
    paths,
    require_same,
)
from tests.packages import conda_package, release_package

GOLDEN = ROOT.parent / "shared" / "golden-v1"


CASES = sorted(path.parent.name for path in GOLDEN.glob("*/case.json"))


MOST = 4  # configs of a feedstock


@pytest.mark.slow("feedstocks are built by kiln and by rattler-build")
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


@pytest.mark.slow("feedstocks are built by kiln and by rattler-build")
def test_packages_that_inherit_are_those_that_rattler_build_makes(staged: Path, tmp_path: Path) -> None:
    order = ["libstaged", "libstaged-dev", "staged-plugin", "staged", "staged-alone"]
    require_same(staged, tmp_path / "theirs", order)


def steps(root: Path, config: str) -> list[str]:
    """Return the titles of a config's steps in the last run."""
    (log,) = (root / "build_artifacts" / "logs" / "0001").glob(f"{config}.log")
    return re.findall(r"=== (.*)", log.read_text())


@pytest.mark.slow("feedstocks are built by kiln and by rattler-build")
def test_a_staging_output_is_compiled_once_for_all_pythons_that_it_does_not_use(staged: Path) -> None:
    titles = steps(staged, CPU)
    compiles = [title for title in titles if title.startswith("compile")]
    assert compiles == ["compile library", "compile bindings-python3.11", "compile bindings-python3.12"]
    assert titles.count("build staged") == 2, "one for each Python"


@pytest.mark.slow("feedstocks are built by kiln and by rattler-build")
def test_run_exports_of_a_staging_output_go_to_the_packages_that_take_them(staged: Path) -> None:
    packages = sorted((staged / "build_artifacts" / "linux-64").glob("*.conda"))
    by_name = {index(package)["name"]: index(package)["depends"] for package in packages}
    assert by_name["libstaged"] == ["exporter >=2.5.1"]
    assert not any(spec.startswith("exporter") for spec in by_name["libstaged-dev"]), "it asks for none of them"
    assert by_name["staged"] == ["python"], "it ignores those of python"


@pytest.mark.slow("feedstocks are built by kiln and by rattler-build")
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


@pytest.mark.slow("feedstocks are built by kiln and by rattler-build")
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


@pytest.mark.slow("feedstocks are built by kiln and by rattler-build")
def test_the_fleet_plans_it_and_other_engines_are_refused(staged: Path) -> None:
    ended = kiln(staged, "fleet", "plan", "--provider", "local", "--all", "--rebuild", "--container", "none", "--json")
    assert ended.returncode == 0, ended.stderr
    assert CPU in {placement["config"] for placement in json.loads(ended.stdout)["chosen"]["placements"]}
    ended = kiln(staged, "build", CPU, "--container", "none", "--engine", "conda-build")
    assert ended.returncode == 2
    assert "conda-build cannot build a recipe.yaml" in ended.stderr


@pytest.mark.slow("feedstocks are built by kiln and by rattler-build")
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


@pytest.mark.slow("feedstocks are built by kiln and by rattler-build")
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


@pytest.mark.sampled
@pytest.mark.parametrize("where", ["docker", pytest.param("podman", marks=pytest.mark.sampled)])
@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("small-v1", ["libplain", "plain-scripts", "plain"]),
        ("small-v1-staging", ["libstaged", "libstaged-dev", "staged-plugin", "staged", "staged-alone"]),
    ],
)
def test_packages_of_containers_are_those_that_rattler_build_makes_here(
    name: str, order: list[str], where: str, tmp_path: Path
) -> None:
    """One of the two has steps with and steps without the network, so that its scripts have containers of their own."""
    root = copied(name, tmp_path)
    built(root, CPU, where=usable(where))
    require_same(root, tmp_path / "theirs", order)
    report = json.loads(kiln(root, "report", "--json").stdout)
    assert (report["container"], report["image"].partition("@")[0]) == (where, BASE)


@pytest.mark.sampled
def test_debug_opens_a_staging_script_in_a_container(tmp_path: Path) -> None:
    root = copied("small-v1-staging", tmp_path)
    lines = './conda_build.sh >/dev/null 2>&1 && cat compiled.txt && echo "$SRC_DIR" && exit 7\n'
    ended = kiln(root, "build", CPU, "--container", usable("docker"), "--debug", stdin=lines)
    assert ended.returncode == 7, ended.stderr
    *_, compiled, folder = ended.stdout.splitlines()
    assert compiled == "compiled for None"
    assert folder.startswith(f"{environment.ROOT}/")


# The tests of a package downstream: rattler-build's own file of a recipe with each kind of test.
CARRIED = """\
- script:
    interpreter: python
    env:
      GREETING: hello
    content:
    - import os, pathlib
    - prefix = pathlib.Path(os.environ["PREFIX"])
    - assert os.environ["PKG_NAME"] + os.environ["GREETING"] == "userhello"
    - assert (prefix / "share" / "tested").is_file()
    - assert (prefix / "share" / "exporter").is_file()
  requirements:
    run:
    - python 3.12.*
    - exporter
- script:
  - test ! -e $PREFIX/share/exporter  # an environment of its own
- ruby:
    requires:
    - "set"
- r:
    libraries:
    - stats
- perl:
    uses:
    - strict
"""


INTERPRETER = '#!/bin/sh\necho "$0" "$@" | sed "s|.*/bin/|loaded by |"\n'


TESTED = """\
schema_version: 1
package: {name: tested, version: "1.0"}
build:
  number: 0
  script: mkdir -p $PREFIX/share && touch $PREFIX/share/tested
tests:
  - downstream: user >=1
  - downstream: absent
about: {license: CC0-1.0}
"""


def feedstock_with_downstream(folder: Path, carried: str) -> Path:
    """Return a feedstock whose package is tested by another one of its channel, which carries tests."""
    made = channel(folder / "packages")
    index = {"name": "user", "version": "1.5", "build": "0", "build_number": 0, "subdir": "linux-64"}
    info = {
        "index.json": {**index, "depends": ["tested"]},
        "about.json": {},
        "paths.json": {"paths": [], "paths_version": 1},
        "tests/tests.yaml": carried,
    }
    interpreters = {"ruby": "ruby", "r-base": "Rscript", "perl": "perl"}
    programs = [
        release_package(folder / "packages", name, payload={f"bin/{program}": INTERPRETER.encode()})
        for name, program in interpreters.items()
    ]
    user = conda_package(folder / "packages" / "user-1.5-0.conda", info, payload={})
    made.add([(file, "linux-64") for file in (user, *programs)])
    root = folder / "feedstock"
    (root / "recipe").mkdir(parents=True)
    (root / "recipe" / "recipe.yaml").write_text(TESTED)
    (root / "recipe" / "variants.yaml").write_text(f"channel_sources:\n  - {made.url}\n")
    (root / "conda-forge.yml").write_text("conda_build_tool: rattler-build\n")
    assert kiln(root, "rerender").returncode == 0
    return root


@pytest.mark.sampled
def test_packages_downstream_are_tested_with_every_kind_of_test_that_they_carry(tmp_path: Path) -> None:
    root = feedstock_with_downstream(tmp_path, CARRIED)
    built(root, "--all")
    (config,) = json.loads(kiln(root, "report", "--json").stdout)["configs"]
    (package,) = config["packages"]
    tested, untested = package["tests"]["notes"]
    assert tested == "downstream user 1.5: 8 tests passed"
    assert untested.startswith("downstream absent was not tested: nothing in ")
    log = (root / "build_artifacts" / "logs" / "0001" / "linux_64_.log").read_text()
    for line in ("ruby -e require 'set'", "Rscript -e library(stats)", "perl -e use strict;"):
        assert f"loaded by {line}" in log
    (file,) = (root / "build_artifacts").glob("*/tested-*.conda")
    with package_reader.open_package_members(file) as members:
        (tests,) = (data.read().decode() for member, data in members if data and member.name == "info/tests/tests.yaml")
    assert tests == "- downstream: user >=1\n- downstream: absent\n"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("carried", "error", "text"),
    [
        (
            "- perl:\n    uses: [strict]\n- script: exit 3\n",
            TestsFailed,
            "user, downstream of tested fail with exit code 3",
        ),
        ("- lua:\n    uses: [x]\n", BrokenPackage, "tests of the kind 'lua' are not supported"),
    ],
)
def test_a_package_whose_downstream_fails_is_not_finished(
    carried: str, error: type[KilnError], text: str, tmp_path: Path
) -> None:
    root = feedstock_with_downstream(tmp_path, carried)
    ended = kiln(root, "build", "--all", "--container", "none")
    assert ended.returncode == error.exit_code, ended.stderr
    assert text in ended.stderr
    assert not list((root / "build_artifacts").glob("*/tested-*.conda"))


TESTS = "info/tests/tests.yaml"


HASH = re.compile(r"h[0-9a-f]{7}(?=_)")


def without_hash(value: Any) -> Any:
    """Return a JSON value without the hashes of build strings, which the formats make of different keys."""
    return json.loads(HASH.sub("", json.dumps(value)))


def packages_by_name(root: Path) -> dict[str, Path]:
    return {HASH.sub("", path.name): path for path in (root / "build_artifacts").glob("*/*.conda")}


def installed(entries: dict[str, Any]) -> dict[str, Any]:
    """Return what a package installs, without its tests, which each format packs in its own layout."""
    return {name: value for name, value in entries.items() if not name.startswith(("etc/conda/test-files/", TESTS))}


def commands(package: Path) -> list[str]:
    """Return the commands of a package's tests, in either layout."""
    with package_reader.open_package_members(package) as members:
        texts = {member.name: content.read().decode() for member, content in members if content is not None}
    if TESTS in texts:
        entries = parse_document(texts[TESTS], TESTS, ScalarInterpretation.TEXT).value
        scripts = [entry.get("script", ()) for entry in entries]
        parts = [script["content"].splitlines() if isinstance(script, dict) else script for script in scripts]
        return [line for lines in parts for line in lines]
    lines = texts.get("info/test/run_test.sh", "").splitlines()
    return [line for line in lines if line not in {"", "set -ex", "exit 0"}]


def about(package: Path) -> dict[str, Any]:
    """Return about.json without channels, and what rattler-build leaves out: names of license files, empty lists."""
    entries = read_info_json(package, "about.json")
    return {key: value for key, value in entries.items() if key not in {"channels", "license_file"} and value != []}


def content_hashes(package: Path) -> dict[str, Any]:
    """Return the hashes of the files without the prefix, whose path depends on the work directory."""
    entries = read_info_json(package, "paths.json")["paths"]
    return {entry["_path"]: entry["sha256"] for entry in entries if "prefix_placeholder" not in entry}


@pytest.mark.slow("a feedstock is built in both formats")
def test_a_feedstock_in_both_formats_makes_equal_packages(tmp_path: Path) -> None:
    old = Path(shutil.copytree(FIXTURES / "small-feedstock", tmp_path / "old"))
    new = in_v1(tmp_path / "new")
    for root in (old, new):
        built(root, "--all")
    before, after = packages_by_name(old), packages_by_name(new)
    assert sorted(before) == sorted(after)
    assert len(before) == 6
    for name, package in before.items():
        other = after[name]
        assert installed(contents(package)) == installed(contents(other)), name
        assert commands(package) == commands(other), name
        assert installed(paths(package)) == installed(paths(other)), name
        assert installed(content_hashes(package)) == installed(content_hashes(other)), name
        assert without_hash(depends(package)) == without_hash(depends(other)), name
        assert about(package) == about(other), name
    assert any(commands(package) for package in before.values())
    assert any(PLACEHOLDER.search(str(read_info_json(package, "paths.json"))) for package in before.values())
