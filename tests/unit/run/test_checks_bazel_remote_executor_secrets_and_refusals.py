"""A remote executor is refused where it would have no effect."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import UsageError
from kiln.build.job import job
from kiln.build.job.job import BuildOptions, RunOptions
from kiln.feedstock import matrix
from kiln.recipe import feedstock, render
from kiln.run import checks
from tests import small_tensorflow

URL = "grpcs://executor.example.org"
SERVING = Path(__file__).parents[3] / "serving"


def options(*, build: BuildOptions | None = None, **more: Any) -> RunOptions:
    return RunOptions(configs=(), command="", **{"remote_executor": URL, **more}, build=build or BuildOptions())


def require(root: Path, chosen: RunOptions) -> None:
    found = feedstock.load(root)
    checks.refuse_ineffective_remote_options(found, [render.render(found, matrix.configs(found)[0])], chosen)


def test_the_small_tensorflow_uses_it(tmp_path: Path) -> None:
    require(small_tensorflow.FIXTURE, options())
    require(small_tensorflow.FIXTURE, options(remote_cache="grpcs://cache.example.org"))
    (tmp_path / "headers").write_text("authorization: x")
    (tmp_path / "headers").chmod(0o600)
    secrets = job.remote_secret_variables(options(remote_credentials=tmp_path))
    assert secrets.keys() == {"BAZEL_REMOTE_EXECUTOR", "BAZEL_REMOTE_CREDENTIALS"}
    assert job.remote_secret_variables(options(remote_executor=None)) == {}
    assert URL not in repr(options())


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (options(build=BuildOptions(engine="conda-build")), "requires --engine rattler-build"),
        (options(build=BuildOptions(rehearsal=True)), "no effect with --rehearse"),
        (options(remote_cache="http://cache.example.org"), "cache over HTTP"),
        (options(remote_executor=None, remote_credentials=Path("/c")), "--remote-credentials requires"),
        (options(remote_executor=None, build=BuildOptions(remote_jobs=2)), "--remote-jobs requires"),
        (options(remote_executor=None, build=BuildOptions(remote_fallback=True)), "--remote-fallback requires"),
    ],
)
def test_other_builds_are_refused(chosen: RunOptions, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        require(small_tensorflow.FIXTURE, chosen)


def test_a_recipe_whose_scripts_do_not_read_the_variable_is_refused(tmp_path: Path) -> None:
    shutil.copytree(small_tensorflow.FIXTURE, tmp_path / "f")
    for name in ("remote_execution.py", "build.sh", "compile_plan.py"):
        path = tmp_path / "f" / "recipe" / name
        path.write_text(path.read_text().replace("BAZEL_REMOTE_EXECUTOR", "OTHER"))
    with pytest.raises(UsageError, match="no file of the recipe reads BAZEL_REMOTE_EXECUTOR"):
        require(tmp_path / "f", options())


def test_a_recipe_without_a_compile_step_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "f" / "recipe"
    recipe.mkdir(parents=True)
    (recipe / "meta.yaml").write_text(
        "package: {name: a, version: 1}\nbuild: {noarch: python, script: BAZEL_REMOTE_EXECUTOR}\n"
    )
    (tmp_path / "f" / ".ci_support").mkdir()
    (tmp_path / "f" / ".ci_support" / "linux_64_.yaml").write_text("channel_sources:\n- conda-forge\n")
    with pytest.raises(UsageError, match="no compile step"):
        require(tmp_path / "f", options())
