"""Feedstocks with a recipe.yaml are built by the engine on this machine, from a small channel, and tested."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kiln import build, expand, feedstock_loader, render
from kiln.build import engine, worker
from kiln.channel import Channel
from kiln.conda_package import reader
from kiln.conda_package.reader import read_info
from kiln.errors import BrokenPackage, KilnError, RecipeFault, TestsFailed
from kiln.matchspec import legacy
from kiln.model.plan import StagedFiles
from kiln.run import recipe_support
from tests.packages import conda_package, release_package
from tests.waiting import CEILING

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
PROGRAM = Path(__file__).with_name("rattler_builds.py")
EXPORTS = "info/run_exports.json"
COMPARED = ("info/tests/tests.yaml", EXPORTS)
PLACEHOLDER = re.compile(r"/[^\s:\"']*_env_placehold[^\s:\"'/]*")
GOLDEN = ROOT.parent / "shared" / "golden-v1"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/case.json"))
MOST = 4  # configs of a feedstock
CPU = "linux_64_cuda_compiler_versionNone"


def channel(folder: Path) -> Channel:
    """Return a channel with the running interpreter as two Pythons, and packages that export run requirements."""
    modules = 'PYTHONPATH="$(echo "${0%/bin/*}"/lib/python*/site-packages)"'
    program = f'#!/bin/sh\npython={sys.executable}; test -x "$python" || python=python3  # in a container\n'
    program += f'exec env {modules} "$python" "$@"\n'
    files = [
        release_package(folder, "python", f"{version}.0", payload={"bin/python": program.encode()})
        for version in ("3.11", "3.12")
    ]
    files += [release_package(folder, name, version="2.5.1") for name in ("exporter", "ignored-exporter")]
    made = Channel(root=folder / "channel")
    made.add([(file, "linux-64") for file in files])
    return made


def copied(name: str, folder: Path) -> Path:
    """Return a copy of a fixture whose variants name the small channel, with its configs."""
    root = Path(shutil.copytree(FIXTURES / name, folder / name))
    (folder / "packages").mkdir()
    with (root / "recipe" / "variants.yaml").open("a") as file:
        file.write(f"channel_sources:\n  - {channel(folder / 'packages').url}\n")
    ended = kiln(root, "rerender")
    assert ended.returncode == 0, ended.stderr
    return root


def kiln(root: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command of kiln's to its end."""
    argv = (sys.executable, "-m", "kiln", "-C", str(root), *words)
    return subprocess.run(argv, cwd=ROOT, input=stdin, text=True, capture_output=True, check=False, timeout=CEILING)


def contents(package: Path) -> dict[str, Any]:
    """Return the files that a package installs, its tests and run exports, without the prefixes in them."""
    with reader.reading(package) as setting:
        files = {
            member.name: member.linkname if content is None else content.read().decode(errors="replace")
            for member, content in setting
            if not member.isdir() and (not member.name.startswith("info/") or member.name in COMPARED)
        }
    exports = json.loads(files.pop(EXPORTS, "{}"))
    plain = {name: PLACEHOLDER.sub("PREFIX", text) for name, text in files.items() if not name.endswith(".pyc")}
    return {**plain, EXPORTS: {kind: list(map(legacy, specs)) for kind, specs in exports.items()}}


def paths(package: Path) -> dict[str, tuple[str, str | None]]:
    """Return the kind of each installed file, and how the prefix in it is replaced."""
    entries = read_info(package, "paths.json")["paths"]
    kinds = {entry["_path"]: (entry["path_type"], entry.get("file_mode")) for entry in entries}
    return {name: kind for name, kind in kinds.items() if not name.endswith(".pyc")}


def depends(package: Path) -> dict[str, Any]:
    """Return the entries of a package's index that do not depend on time, in conda's notation."""
    fields = {key: value for key, value in index(package).items() if key != "timestamp"}
    lists = {key: sorted(map(legacy, fields.get(key, []))) for key in ("depends", "constrains")}
    return {**fields, **lists}


def require_same(root: Path, folder: Path, order: list[str]) -> None:
    """Compare the packages of the config without CUDA with those that rattler-build makes of it."""
    theirs = by_rattler_build(root, CPU, folder, order)
    ours = {path.name: path for path in (root / "build_artifacts").glob("*/*.conda")}
    assert {index(package)["name"] for package in theirs.values()} == set(order)
    assert ours.keys() >= theirs.keys()
    for file, package in theirs.items():
        assert depends(ours[file]) == depends(package), file
        assert paths(ours[file]) == paths(package), file
        assert contents(ours[file]) == contents(package), file


def by_rattler_build(root: Path, config: str, folder: Path, order: list[str]) -> dict[str, Path]:
    """Build a config with rattler-build alone, and return its packages by name."""
    asked = {
        "recipe": str(root / "recipe" / "recipe.yaml"),
        "files": [str(root / ".ci_support" / f"{config}.yaml")],
        "folder": str(folder),
        "channels": [Channel(root=root.parent / "packages" / "channel").url],
        "order": order,
    }
    ended = subprocess.run(
        (sys.executable, str(PROGRAM)),
        input=json.dumps(asked),
        env={**os.environ, "RATTLER_CACHE_DIR": str(root.parent / "cache")},
        text=True,
        capture_output=True,
        check=False,
        timeout=CEILING,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return {path.name: path for path in folder.glob("*/*.conda")}


def built(root: Path, *words: str) -> None:
    """Build on this machine."""
    ended = kiln(root, "build", "--container", "none", *words)
    assert ended.returncode == 0, ended.stderr


def index(package: Path) -> dict[str, Any]:
    result: dict[str, Any] = read_info(package, "index.json")
    return result


def test_packages_are_those_that_rattler_build_makes(tmp_path: Path) -> None:
    root = copied("small-v1", tmp_path)
    built(root, CPU)
    require_same(root, tmp_path / "theirs", ["libplain", "plain-scripts", "plain"])
    packages = [str(path) for path in (root / "build_artifacts").glob("*/*.conda")]
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
    with reader.reading(file) as members:
        (tests,) = (data.read().decode() for member, data in members if data and member.name == COMPARED[0])
    assert tests == "- downstream: user >=1\n- downstream: absent\n"


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


@pytest.mark.skipif(not CASES, reason="shared/golden-v1, the reference answers on real feedstocks, is not here")
@pytest.mark.parametrize("case", CASES)
def test_the_plan_of_a_real_feedstock_is_valid_for_the_engine(case: str, tmp_path: Path) -> None:
    root = Path(
        shutil.copytree(GOLDEN / case, tmp_path / case, ignore=shutil.ignore_patterns("expected", ".ci_support"))
    )
    shutil.copytree(GOLDEN / case / "expected" / "ci_support", root / ".ci_support")
    feedstock = feedstock_loader.find(root)
    configs = sorted(path.stem for path in feedstock.configs.glob("linux_64*.yaml"))[:MOST]
    recipe_support.require(feedstock, configs)
    recipes: list[Any] = []
    expected: list[list[str]] = []
    for config in configs:
        plan = render.finalise(render.render(feedstock, expand.read(feedstock, config)))
        folder, recipe = Path("/work"), feedstock.recipe
        for staging in plan.stagings:
            step = build.plan_compile(
                plan, staging, recipe_folder=recipe, folder=folder, channels=(), settings=Path("/settings")
            )
            recipes.append(step.recipe)
            expected.append(["kiln-compile", "0", "compile"])
        compiled = {staging.name: StagedFiles(folder=folder) for staging in plan.stagings}
        for package in build.plan_outputs(
            plan, recipe_folder=recipe, folder=folder, channels=(), compiled=compiled, extra={}
        ):
            worker.copy_packed(package.packed, recipe, tmp_path / "step" / worker.RECIPE)
            recipes.append(engine.recipe_of(package))
            output = package.output
            expected.append([output.name, output.version, output.build_string])
    assert configs
    argv = (sys.executable, "-m", "tests.integration.rattler_parses", str(tmp_path / "step"))
    ended = subprocess.run(argv, cwd=ROOT, input=json.dumps(recipes), text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == expected
