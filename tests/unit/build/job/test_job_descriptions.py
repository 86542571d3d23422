"""The jobs of processes are read as they were written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.base.serialization import from_json_values, to_json
from kiln.build.job.job import BuildJob, BuildOptions, ConfigJob

OPTIONS = BuildOptions(run_arguments=("--gpus", "all"), distdir=Path("/downloads"), from_step="compile", stall=60.0)
BUILD = BuildJob(
    root=Path("/f"),
    recipe=Path("/f/recipe"),
    config="a",
    options=OPTIONS,
    folder=Path("/f/work"),
    cache=Path("/f/cache"),
    result=Path("/f/result.json"),
    extra={"sha": "1"},
    channel=Path("/f/channel"),
    queue=Path("/f/scripts"),
    shared_packages=({"name": "lib", "reused": True},),
)
CONFIG = ConfigJob(
    root="/f",
    config="a",
    key="k",
    sources="s",
    shared="s",
    options=OPTIONS,
    container="docker",
    cores=2,
    variables={"CONFIG": "a"},
    environment={"PATH": "/bin"},
    log="/f/log",
    group="cpu",
    cache_key="c",
    compile_memory=1,
)


def test_a_building_processs_job_comes_back_with_its_paths() -> None:
    assert BuildJob.parse(BUILD.as_text()) == BUILD


def test_a_configs_job_comes_back_from_its_text() -> None:
    assert ConfigJob.parse(CONFIG.as_text()) == CONFIG


@pytest.mark.parametrize(
    "options",
    [
        BuildOptions(),
        BuildOptions(distdir=Path("/downloads"), run_arguments=("--gpus", "all"), mirror="https://mirror.example"),
        BuildOptions(rebuild=True, keep_failed=True, debug="", network="always", rehearsal=True, stall=1.5),
    ],
    ids=["defaults", "paths and lists", "flags"],
)
def test_options_survive_json(options: BuildOptions) -> None:
    assert from_json_values(BuildOptions, json.loads(json.dumps(to_json(options)))) == options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (BuildOptions(), False),
        (BuildOptions(keep_failed=True), False),
        (BuildOptions(rebuild=True), True),
        (BuildOptions(from_step="compile"), True),
        (BuildOptions(debug=""), True),
    ],
    ids=["defaults", "keep failed", "rebuild", "from step", "debug"],
)
def test_these_options_build_finished_configs_again(options: BuildOptions, expected: bool) -> None:
    assert options.rebuilds_finished is expected
