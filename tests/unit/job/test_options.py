"""The options of a build reach another process unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.job.options import BuildOptions
from kiln.serialization import from_json_values, to_json


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
    assert options.builds_finished is expected
