"""Builds by the engines of images, of conda-forge, and of other tools; requirements that no channel has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import MissingTool, SolveFailed
from kiln.conda.channel import LocalChannel
from kiln.conda.package_reader import read_info_json
from kiln.image import worker
from tests.integration.matrix.helpers import BASE, CPU_311, assert_whole, kiln, packages, replace, report
from tests.packages import release_package

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def like_conda_forges(docker: str, tmp_path: Path) -> Iterator[str]:
    """An image with an entry point that only root can pass, as conda-forge's have."""
    tag = f"localhost/kiln-test:{tmp_path.name}-{os.getpid()}".lower()
    made = subprocess.run((docker, "create", BASE), check=True, capture_output=True, text=True).stdout.strip()
    entry = 'ENTRYPOINT ["/bin/false"]'
    try:
        subprocess.run((docker, "commit", "--change", entry, made, tag), check=True, capture_output=True)
    finally:
        subprocess.run((docker, "rm", made), check=True, capture_output=True)
    yield tag
    subprocess.run((docker, "rmi", "--force", tag), check=True, capture_output=True)


@pytest.mark.slow("a feedstock is built in a container")
@pytest.mark.sampled
def test_an_image_without_the_engine_is_lent_kilns_own(small: Path, like_conda_forges: str) -> None:
    """As conda-forge's images are: a Python, an entry point for root, and no rattler-build."""
    replace(small, "check.sh", "\n", '\ntest -z "${PYTHONPATH-}"\n')  # nothing of the lent engine reaches a test
    own = {
        "DOCKER_IMAGE": like_conda_forges,
        "CONDA_FORGE_DOCKER_RUN_ARGS": f"--tmpfs {worker.ENGINE_HOME}",
    }
    ended = kiln(small, CPU_311, "--container", "docker", **own)
    assert ended.returncode == 0, ended.stderr
    assert_whole(small)
    assert len([item for item in (small / "build_artifacts" / "engines").iterdir() if item.is_dir()]) == 1


@pytest.mark.slow("a feedstock is built in a container")
@pytest.mark.sampled
def test_an_image_without_engine_and_python_is_reported_by_name(small: Path, docker: str) -> None:
    hidden = {"CONDA_FORGE_DOCKER_RUN_ARGS": f"--tmpfs {worker.ENGINE_HOME} --tmpfs /usr/lib/python3.11"}
    ended = kiln(small, CPU_311, "--container", docker, **hidden)
    assert ended.returncode == MissingTool.exit_code
    assert f"the image {BASE} has no py-rattler-build" in ended.stderr


@pytest.mark.slow("a feedstock is built in a container")
@pytest.mark.sampled
def test_outputs_without_a_script_pick_files_that_the_recipe_installed(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / ".ci_support").mkdir()
    (tmp_path / ".ci_support" / "linux_64_.yaml").write_text("target_platform:\n- linux-64\n")
    (tmp_path / "recipe" / "meta.yaml").write_text(PICKING)
    ended = kiln(tmp_path, "linux_64_", "--container", "none")
    assert ended.returncode == 0, ended.stderr
    paths = {
        file.name: read_info_json(file, "paths.json")["paths"]
        for file in LocalChannel(root=tmp_path / "build_artifacts").packages()
    }
    assert {
        name.rsplit("-", 2)[0]: [(item["_path"], item.get("file_mode")) for item in told]
        for name, told in paths.items()
    } == {
        "picked": [("lib/a.dat", "binary"), ("lib/a.txt", "text")],
        "picked-dev": [("include/a.h", None)],
    }


PICKING = """
package:
  name: many
  version: "3"
build:
  script:
    - mkdir -p $PREFIX/lib $PREFIX/include
    - echo $PREFIX > $PREFIX/lib/a.txt
    - printf 'x\\0%s\\0y' $PREFIX > $PREFIX/lib/a.dat
    - echo hi > $PREFIX/include/a.h
outputs:
  - name: picked
    files:
      - lib/*
    test:
      commands:
        - grep -qF "$PREFIX" $PREFIX/lib/a.txt
        - grep -qF "$PREFIX" $PREFIX/lib/a.dat
  - name: picked-dev
    files:
      - include/*
"""


@pytest.mark.slow("a feedstock is built in a container")
def test_scripts_get_the_callers_variables_that_the_recipe_names_and_tests_their_sources(
    tmp_path: Path, where: str
) -> None:
    """As conda-build: script_env, test/source_files, and the output that is named as the recipe is."""
    source = tmp_path / "recipe" / "src" / "data"
    source.mkdir(parents=True)
    (source / "a.txt").write_text("from the source\n")
    (tmp_path / ".ci_support").mkdir()
    config = f"docker_image:\n- {BASE}\ntarget_platform:\n- linux-64\n"
    (tmp_path / ".ci_support" / "linux_64_.yaml").write_text(config)
    (tmp_path / "recipe" / "meta.yaml").write_text(NAMED_AS_THE_RECIPE)
    (tmp_path / "recipe" / "part.sh").write_text("mkdir -p $PREFIX/share; echo part > $PREFIX/share/part\n")
    ended = kiln(tmp_path, "linux_64_", "--container", where, TOKEN_OF_OURS="hunter2", NOT_ASKED_FOR="here")
    assert ended.returncode == 0, ended.stderr
    made = {file.name.rsplit("-", 2)[0]: file for file in LocalChannel(root=tmp_path / "build_artifacts").packages()}
    assert {
        name: [item["_path"] for item in read_info_json(file, "paths.json")["paths"]] for name, file in made.items()
    } == {
        "whole": ["share/length", "share/mode"],
        "part": ["share/part"],
    }
    (entry,) = report(tmp_path).configs
    assert entry.log is not None
    assert "hunter2" not in entry.log.read_text() + ended.stderr
    assert b"hunter2" not in made["whole"].read_bytes()


NAMED_AS_THE_RECIPE = """
package:
  name: whole
  version: "1"
source:
  path: src
build:
  script_env:
    - TOKEN_OF_OURS
    - MODE=quick
    - NEVER_SET
  script:
    - mkdir -p $PREFIX/share
    - test -z "${NOT_ASKED_FOR-}"
    - printf %s "$TOKEN_OF_OURS" | wc -c > $PREFIX/share/length
    - echo $MODE > $PREFIX/share/mode
outputs:
  - name: whole
    test:
      source_files:
        - data/*.txt
      commands:
        - test "$(cat data/a.txt)" = "from the source"
        - test "$(cat $PREFIX/share/length)" = 7
        - test "$(cat $PREFIX/share/mode)" = quick
  - name: part
    script: part.sh
"""


@pytest.mark.slow("a feedstock is built in a container")
@pytest.mark.sampled
@pytest.mark.parametrize(("engine", "package"), [("conda-build", "conda-build"), ("mambabuild", "boa")])
def test_an_image_without_another_engine_is_reported_with_its_package(
    small: Path, docker: str, engine: str, package: str
) -> None:
    ended = kiln(small, CPU_311, "--container", docker, "--engine", engine)
    assert ended.returncode == MissingTool.exit_code
    assert f"the image {BASE} has no {package}" in ended.stderr


@pytest.mark.slow("a feedstock is built in a container")
def test_another_engine_is_called_as_in_conda_forge_and_its_packages_are_published(small: Path, tmp_path: Path) -> None:
    """A program in conda-build's place, which leaves a package that was built before where conda-build would."""
    assert kiln(small, CPU_311, "--container", "none").returncode == 0
    shutil.move(small / "build_artifacts" / "linux-64", tmp_path / "made")
    shutil.rmtree(small / "build_artifacts")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "conda-build").write_text(STAND_IN.format(python=sys.executable, made=tmp_path / "made"))
    (tools / "conda-build").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    ended = kiln(small, CPU_311, "--container", "none", "--engine", "conda-build", PATH=path, sha="abc")
    assert ended.returncode == 0, ended.stderr
    assert packages(small) == {file.name for file in (tmp_path / "made").glob("*.conda")}
    assert_whole(small)
    (config,) = report(small).configs
    assert config.log is not None
    called = config.log.read_text().partition("called with ")[2].splitlines()[0].split()
    assert called[:4] == [str(small / "recipe"), "-m", str(small / ".ci_support" / f"{CPU_311}.yaml"), called[3]]
    assert called[3] == "--suppress-variables"
    assert called[-3:] == ["flow_run_id=", "remote_url=", "sha=abc"]


STAND_IN = """#!{python}
import json, os, pathlib, shutil, sys
print("called with", *sys.argv[1:], flush=True)
root = json.loads(pathlib.Path(os.environ["CONDARC"]).read_text())["conda-build"]["root-dir"]
shutil.copytree("{made}", pathlib.Path(root, "linux-64"))
"""
PIN = '        - {{ pin_subpackage("libsmall", exact=True) }}\n'


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (
            PIN + "      host:\n        - wanted\n        - absent 99\n",
            ("build small: host requirements: nothing in ", " satisfies absent 99.*"),
        ),
        (
            PIN + "        - wanted >=1\n",
            ("test small: nothing in ", " satisfies absent >=2, a requirement of small ==1.2 cpu_py311"),
        ),
    ],
    ids=["host", "run"],
)
def test_a_requirement_that_no_channel_has_is_named(
    small: Path, tmp_path: Path, recipe: str, told: tuple[str, str]
) -> None:
    channel = LocalChannel(root=tmp_path / "channel")
    package = release_package(tmp_path / "packages", "wanted", depends=["absent >=2"] if "wanted >=1" in recipe else [])
    channel.add([(package, "linux-64")])
    replace(small, "meta.yaml", PIN, recipe)
    config = small / ".ci_support" / f"{CPU_311}.yaml"
    config.write_text(f"{config.read_text()}channel_sources:\n- {channel.url}\n")
    ended = kiln(small, CPU_311, "--container", "none")
    assert ended.returncode == SolveFailed.exit_code, ended.stderr
    for words in told:
        assert words in ended.stderr
    assert "try: see that the channels" in ended.stderr
    (entry,) = report(small).configs
    assert told[1] in entry.reason
    assert entry.log is not None
    assert "Cannot solve the request because of" in entry.log.read_text()


ROOT = Path(__file__).parents[2]
