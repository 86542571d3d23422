"""Files that can declare external repositories are found below a folder, the nearest first, and read within limits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kiln.conda.provenance import bazel_repositories
from kiln.conda.provenance.bazel_repositories import read_declaring_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("WORKSPACE", True),
        ("a/MODULE.bazel.lock", True),
        ("tensorflow/workspace2.bzl", True),
        ("third_party/absl/workspace.bzl", True),
        ("third_party/absl/BUILD", False),
        ("my_WORKSPACE", False),
        ("x" * 2000 + "/WORKSPACE", False),
    ],
)
def test_files_that_declare_repositories_are_known_by_name(path: str, expected: bool) -> None:
    assert bazel_repositories.is_declaration_file_path(path) is expected


def write(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)


def test_the_nearest_files_come_first(tmp_path: Path) -> None:
    deep = "third_party/xla/third_party/tsl/third_party/py/ml_dtypes/workspace.bzl"
    near = ("MODULE.bazel", "MODULE.bazel.lock", "WORKSPACE", "tensorflow/workspace2.bzl")
    write(tmp_path, deep, *near, "third_party/absl/workspace.bzl", "third_party/absl/absl.BUILD", "README.md")
    contents = read_declaring_files(tmp_path)
    assert list(contents) == [*near, "third_party/absl/workspace.bzl", deep]
    assert contents["WORKSPACE"] == b"WORKSPACE"


def test_links_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    write(tmp_path / "outside", "WORKSPACE")
    sources = tmp_path / "sources"
    write(sources, "WORKSPACE.bazel")
    (sources / "WORKSPACE").symlink_to(tmp_path / "outside" / "WORKSPACE")
    (sources / "bazel-out").symlink_to(tmp_path / "outside")
    (sources / "a" / "MODULE.bazel").mkdir(parents=True)
    os.mkfifo(sources / "MODULE.bazel")
    assert list(read_declaring_files(sources)) == ["WORKSPACE.bazel"]


def test_sources_that_bazel_fetched_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "WORKSPACE", "base/ab/external/curl/MODULE.bazel", "base/ab/execroot/a", ".git/WORKSPACE")
    assert list(read_declaring_files(tmp_path)) == ["WORKSPACE"]


def test_too_large_files_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "WORKSPACE", "a/WORKSPACE")
    (tmp_path / "WORKSPACE").write_bytes(b"#" * (bazel_repositories.LARGEST_FILE + 1))
    assert list(read_declaring_files(tmp_path)) == ["a/WORKSPACE"]


@pytest.mark.parametrize(("name", "limit"), [("MOST_ENTRIES", 3), ("DEEPEST", 2)])
def test_the_search_is_limited(name: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "WORKSPACE", "a/WORKSPACE", "a/b/WORKSPACE", "a/b/c/WORKSPACE")
    monkeypatch.setattr(bazel_repositories, name, limit)
    assert list(read_declaring_files(tmp_path)) == ["WORKSPACE", "a/WORKSPACE"][: 1 if name == "MOST_ENTRIES" else 2]


def test_of_all_files_the_nearest_within_the_limit_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "WORKSPACE", "a/WORKSPACE", "b/WORKSPACE")
    monkeypatch.setattr(bazel_repositories, "MOST_FILES", 2)
    assert list(read_declaring_files(tmp_path)) == ["WORKSPACE", "a/WORKSPACE"]
    monkeypatch.setattr(bazel_repositories, "LARGEST_ALL", len("WORKSPACE"))
    assert list(read_declaring_files(tmp_path)) == ["WORKSPACE"]


def test_a_missing_folder_has_no_files(tmp_path: Path) -> None:
    assert read_declaring_files(tmp_path / "none") == {}
