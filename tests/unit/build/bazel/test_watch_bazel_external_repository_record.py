"""Declarations for Bazel in a step's sources are recorded before they are removed, and never fails the build."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UnsafeTemplate
from kiln.build.bazel import watch
from kiln.build.engine.failures import ENGINE_FOLDER
from kiln.conda.provenance import bazel_repositories

if TYPE_CHECKING:
    from pathlib import Path

DECLARED = 'http_archive(name = "eigen_archive", url = "https://github.com/libeigen/eigen/archive/3.4.0.zip")'


@pytest.fixture
def step_folder(tmp_path: Path) -> Path:
    work = tmp_path / ENGINE_FOLDER / "rattler-build_a" / "work"
    work.mkdir(parents=True)
    (work / "WORKSPACE").write_text(DECLARED)
    return tmp_path


def test_the_repositories_of_a_step_are_recorded(step_folder: Path) -> None:
    watch.write_repository_record(step_folder)
    (repository,) = watch.read_repository_record(step_folder)
    assert (repository["name"], repository["url"]) == (
        "eigen_archive",
        "https://github.com/libeigen/eigen/archive/3.4.0.zip",
    )


def test_sources_without_bazels_files_declare_nothing(tmp_path: Path) -> None:
    watch.write_repository_record(tmp_path)
    assert watch.read_repository_record(tmp_path) == []


def test_a_source_beyond_the_limits_is_a_line_in_the_log(
    step_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: object) -> None:
        raise UnsafeTemplate("it needs more than 10 s")

    monkeypatch.setattr(bazel_repositories, "external_repositories", refuse)
    watch.write_repository_record(step_folder)
    assert "not recorded: it needs more than 10 s" in capsys.readouterr().out
    assert watch.read_repository_record(step_folder) == []


def test_of_several_steps_the_first_repository_of_a_name_counts() -> None:
    own, of_compile = [{"name": "a", "version": "1"}], [{"name": "a", "version": "2"}, {"name": "b", "version": "3"}]
    assert watch.merged_repositories(own, of_compile) == [*own, of_compile[1]]
