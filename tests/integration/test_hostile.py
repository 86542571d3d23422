"""Input that once took gigabytes or minutes, or never ended, is refused or read, and the refusal names the place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kiln.base import limits
from kiln.conda.provenance.bazel_repositories import LARGEST_FILE, external_repositories
from tests.bench.hostile import fails, read
from tests.hostile import CONFIG, NAMED, Hostile, template

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize("hostile", NAMED.values(), ids=NAMED)
def test_a_hostile_feedstock_is_refused_or_done(hostile: Hostile, tmp_path: Path) -> None:
    reading = read(hostile.write(tmp_path).root, "rerender")
    assert not fails(reading), reading
    if reading.code == 8:
        assert re.match(r"error: recipe/(meta|conda_build_config)\.yaml:", reading.said), reading.said


@pytest.mark.parametrize(
    "command", [("matrix",), ("render", CONFIG), ("build", CONFIG, "--container", "none", "--dry-run")]
)
def test_every_command_that_renders_is_bounded_and_names_the_line(command: tuple[str, ...], tmp_path: Path) -> None:
    reading = read(template("growth", "{{ ','.join(['a'*1000000]*5000) }}").write(tmp_path).root, *command)
    assert not fails(reading), reading
    assert reading.code == 8
    assert "error: recipe/meta.yaml:5: rendering takes more work than a recipe needs" in reading.said


def test_the_line_of_a_step_without_end_is_named(tmp_path: Path) -> None:
    reading = read(template("number", "{{ 7 ** 1000000000 }}").write(tmp_path).root, "render", CONFIG)
    assert not fails(reading), reading
    assert reading.said.startswith("error: recipe/meta.yaml:5: "), reading.said
    assert "8 s of processor time" in reading.said


def test_the_largest_files_for_bazel_are_read_within_the_limits() -> None:
    data = (b"a(b=c)\n" * (LARGEST_FILE // 7))[:LARGEST_FILE]
    last = b'http_archive(name = "a", url = "https://a.example/a.zip")'
    files = {**{f"{number}/WORKSPACE": data for number in range(10)}, "WORKSPACE": last}
    assert [item.name for item in limits.run_bounded(lambda: external_repositories(files))] == ["a"]
