"""External repositories are read out of Bazel's files as text; hostile ones declare nothing."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from kiln.base import limits
from kiln.conda.provenance import bazel_repositories
from kiln.conda.provenance.bazel_repositories import LARGEST_FILE, external_repositories, read_declaring_files
from kiln.conda.provenance.records import ExternalRepository
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

WORKSPACE = b'''
load("//third_party:repo.bzl", "tf_http_archive", "tf_mirror_urls")
EIGEN_COMMIT = "outer"

def repo(name):
    """Import Eigen and LLVM."""
    EIGEN_COMMIT = "3d90"
    tf_http_archive(
        name = "eigen_archive",
        sha256 = "%s",
        strip_prefix = "eigen-{commit}".format(commit = EIGEN_COMMIT),
        urls = [
            "https://storage.googleapis.com/mirror.tensorflow.org/{commit}.tar.gz".format(commit = EIGEN_COMMIT),
            "https://gitlab.com/libeigen/eigen/-/archive/{c}/eigen-{c}.tar.gz".format(c = EIGEN_COMMIT),
        ],
    )
    tf_http_archive(name = name, urls = tf_mirror_urls("https://github.com/llvm/llvm-project/archive/{}.tar.gz".format("fbcc")))
    maybe(http_archive, name = "re2", url = "https://github.com/google/re2/archive/" + "03da" + ".zip")
    native.new_git_repository(name = "ruy", remote = "https://github.com/google/ruy.git", commit = "841e")
    http_archive(name = "curl", url = "https://curl.example/curl-%%s.tar.gz" %% "8.4.0", sha256 = "short")
    http_archive(name = "unknown", url = made_up(name))
    http_archive(name = "secret", url = "https://me:swordfish@a.example/a-1.zip")
''' % (b"ab" * 32)

MODULE = b"""
module(name = "org", version = "1")
bazel_dep(name = "abseil-cpp", version = "20230802.0", repo_name = "com_google_absl")
bazel_dep(name = "protobuf", version = "29.0", repo_name = "com_google_protobuf")
single_version_override(module_name = "protobuf", version = "31.1")
bazel_dep(name = "rules_ml")
archive_override(module_name = "rules_ml", integrity = "sha256-q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s=", urls = ["https://github.com/g/rules_ml/archive/73cb.tar.gz"])
bazel_dep(name = "local")
local_path_override(module_name = "local", path = "local")
"""


def read(**files: bytes) -> dict[str, ExternalRepository]:
    places = {
        name.replace("__", "/").replace("_bazel", ".bazel").replace("_bzl", ".bzl"): files[name] for name in files
    }
    return {item.name: item for item in limits.run_bounded(lambda: external_repositories(places))}


def test_workspace_files_declare_archives_and_git_repositories() -> None:
    repositories = read(third__workspace_bzl=WORKSPACE)
    assert {item.name: item.url for item in repositories.values()} == {
        "eigen_archive": "https://gitlab.com/libeigen/eigen/-/archive/3d90/eigen-3d90.tar.gz",
        "llvm-project": "https://github.com/llvm/llvm-project/archive/fbcc.tar.gz",
        "re2": "https://github.com/google/re2/archive/03da.zip",
        "ruy": "https://github.com/google/ruy.git",
        "curl": "https://curl.example/curl-8.4.0.tar.gz",
    }
    assert repositories["eigen_archive"].sha256 == "ab" * 32
    assert repositories["curl"].sha256 == "", "no hash"
    assert repositories["ruy"].version == "841e"


def test_module_files_declare_modules_with_their_overrides() -> None:
    repositories = read(MODULE_bazel=MODULE)
    assert repositories["abseil-cpp"] == ExternalRepository(
        name="abseil-cpp", alias="com_google_absl", version="20230802.0", registry=bazel_repositories.CENTRAL_REGISTRY
    )
    assert repositories["protobuf"].version == "31.1"
    assert (repositories["rules_ml"].url, repositories["rules_ml"].registry) == (
        "https://github.com/g/rules_ml/archive/73cb.tar.gz",
        "",
    )
    assert repositories["rules_ml"].sha256 == "ab" * 32
    assert "local" not in repositories


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../a"},
        {"name": "a" * 2000},
        {"version": "1\x1b[31m"},
        {"alias": "a" * 2000},
        {"url": "file:///etc/passwd"},
        {"url": "https://me:swordfish@a.example/a.zip"},
        {"url": "https://a.example/" + "a" * 2000},
        {"registry": "https://a.example/?token=swordfish"},
        {"sha256": "ab"},
    ],
)
def test_a_forged_repository_is_invalid(changes: dict[str, str]) -> None:
    fields = {
        "name": "a",
        "version": "1",
        "url": "https://a.example/a.zip",
        "registry": bazel_repositories.CENTRAL_REGISTRY,
    }
    assert bazel_repositories.is_valid_repository(ExternalRepository(**fields))
    assert not bazel_repositories.is_valid_repository(ExternalRepository(**{**fields, **changes}))


@pytest.mark.parametrize("integrity", ["sha256-?", "sha384-q6ur", "sha256-q6ur", ""])
def test_an_unknown_integrity_is_no_hash(integrity: str) -> None:
    declared = f'http_archive(name = "a", url = "https://a.example/a.zip", integrity = "{integrity}")'
    assert read(WORKSPACE=declared.encode())["a"].sha256 == ""


def test_the_selected_versions_of_a_lock_file_replace_the_declared_ones() -> None:
    registry = f"{bazel_repositories.CENTRAL_REGISTRY}/modules"
    keys = (
        f"{registry}/abseil-cpp/20230802.0/MODULE.bazel",
        f"{registry}/abseil-cpp/20240116.2/source.json",
        "https://own.example/modules/zlib/1.3/source.json",
        "https://own.example/modules/../1.3/source.json?x",
    )
    places = {
        "MODULE.bazel": MODULE,
        "MODULE.bazel.lock": json.dumps({"registryFileHashes": dict.fromkeys(keys, "ab")}).encode(),
    }
    repositories = {item.name: item for item in external_repositories(places)}
    assert (repositories["abseil-cpp"].version, repositories["abseil-cpp"].alias) == ("20240116.2", "com_google_absl")
    assert repositories["zlib"].registry == "https://own.example"
    assert set(repositories) == {"abseil-cpp", "zlib", "protobuf", "rules_ml"}


def test_the_first_declaration_from_the_top_folder_counts() -> None:
    first, second = (b'http_archive(name = "a", url = "https://a.example/a-%d.zip")' % number for number in (1, 2))
    assert read(third_party__xla__workspace2_bzl=second, WORKSPACE=first)["a"].url == "https://a.example/a-1.zip"


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",
        b"\xff\xfe",
        b"def f(:",
        b"(" * 100_000,
        b"a = " + b"-" * 100_000 + b"1",
        b"a = " + b"+".join([b"'x'"] * 20_000),
        b'a = "x"\n' + b"a = a + a\n" * 100 + b'http_archive(name = "a", url = a)',
        b'http_archive(name = "a", url = "{:9999999999}{0.__class__}".format("x"))',
        b'http_archive(name = "../a", url = "https://a.example/a.zip")',
        b'http_archive(name = "a", url = "https://a.example/a.zip#\x1b[31m")',
        b'http_archive(name = "a", url = "file:///etc/passwd")',
        b"#" * (LARGEST_FILE + 1),
    ],
)
def test_hostile_files_declare_nothing(data: bytes) -> None:
    assert read(WORKSPACE=data) == {}


def test_files_beyond_the_limit_for_all_declare_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (b'http_archive(name = "%s", url = "https://a.example/a.zip")' % name for name in (b"a", b"b"))
    monkeypatch.setattr(bazel_repositories, "LARGEST_ALL", len(first))
    assert set(read(WORKSPACE=first, a__WORKSPACE=second)) == {"a"}


@pytest.mark.parametrize("data", [b"", b"7", b"[" * 100_000, b'{"registryFileHashes": 7}', b"\xff"])
def test_hostile_lock_files_declare_nothing(data: bytes) -> None:
    assert external_repositories({"MODULE.bazel.lock": data}) == ()


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
    builders.write_files(folder, {path: path for path in paths})


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
