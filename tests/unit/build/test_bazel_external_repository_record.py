"""Declarations for Bazel in a step's sources are recorded before they are removed, and never fails the build."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.bazel import declared_repositories
from kiln.build import bazel_external_repository_record
from kiln.build.rattler_build_paths import ENGINE_FOLDER
from kiln.errors import UnsafeTemplate

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
    bazel_external_repository_record.write_repository_record(step_folder)
    (repository,) = bazel_external_repository_record.read_repository_record(step_folder)
    assert (repository["name"], repository["url"]) == (
        "eigen_archive",
        "https://github.com/libeigen/eigen/archive/3.4.0.zip",
    )


def test_sources_without_bazels_files_declare_nothing(tmp_path: Path) -> None:
    bazel_external_repository_record.write_repository_record(tmp_path)
    assert bazel_external_repository_record.read_repository_record(tmp_path) == []


def test_a_source_beyond_the_limits_is_a_line_in_the_log(
    step_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: object) -> None:
        raise UnsafeTemplate("it needs more than 10 s")

    monkeypatch.setattr(declared_repositories, "external_repositories", refuse)
    bazel_external_repository_record.write_repository_record(step_folder)
    assert "not recorded: it needs more than 10 s" in capsys.readouterr().out
    assert bazel_external_repository_record.read_repository_record(step_folder) == []


def test_of_several_steps_the_first_repository_of_a_name_counts() -> None:
    own, of_compile = [{"name": "a", "version": "1"}], [{"name": "a", "version": "2"}, {"name": "b", "version": "3"}]
    assert bazel_external_repository_record.merged_repositories(own, of_compile) == [*own, of_compile[1]]
