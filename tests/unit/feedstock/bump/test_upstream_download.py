"""Downloads are hashed as they come, bounded, and checked to be what their names say."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from kiln.base import http
from kiln.base.errors import DownloadFailed
from kiln.feedstock.bump import upstream
from kiln.feedstock.bump.changes import SourceDownload
from kiln.feedstock.bump.literals import Literal, SourceView
from tests.bumping import ignored
from tests.git_repositories import git

if TYPE_CHECKING:
    from pathlib import Path

HASH = Literal(start=0, end=3, text="old", key="sha256")


def digests(folder: Path, *urls: str) -> tuple[dict[Literal, str], tuple[str, ...]]:
    item = SourceDownload(source=SourceView(urls=urls), hashes=((HASH, "sha256"),))
    return upstream.hashes_of_downloads([item], folder, env={}, on_file=ignored)


def test_a_local_path_is_relative_to_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "a b.tar").write_bytes(b"x" * 1_000_000)
    expected = hashlib.sha256(b"x" * 1_000_000).hexdigest()
    assert digests(tmp_path, "a b.tar")[0] == {HASH: expected}
    assert digests(tmp_path, (tmp_path / "a b.tar").as_uri())[0] == {HASH: expected}


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.tar.gz", b"<!doctype html>", "the server sent a web page, not a .gz file"),
        ("a.tar.gz", b"\0" * 600, "the server sent something else, not a .gz file"),
        ("a.zip", b"Rar!", "the server sent something else, not a .zip file"),
        ("a.tar.xz", b"", "the server sent nothing, not a .xz file"),
    ],
)
def test_an_error_page_is_not_hashed(name: str, data: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DownloadFailed, match=why):
        digests(tmp_path, name)


def test_an_archive_is_hashed(tmp_path: Path) -> None:
    for name in ("a.tar.gz", "misnamed.zip"):
        (tmp_path / name).write_bytes(b"\x1f\x8b\x08data")
        assert digests(tmp_path, name)[0] == {HASH: hashlib.sha256(b"\x1f\x8b\x08data").hexdigest()}


def test_a_file_above_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_BYTES", 10)
    (tmp_path / "a.tar").write_bytes(b"x" * 11)
    with pytest.raises(DownloadFailed, match="it has 11 B, the limit is 10 B"):
        digests(tmp_path, "a.tar")


def test_a_device_and_other_schemes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="not a regular file"):
        digests(tmp_path, "file:///dev/zero")
    with pytest.raises(DownloadFailed, match="not by ftp"):
        digests(tmp_path, "ftp://example.org/a.tar")
    with pytest.raises(DownloadFailed, match=r"(?s)none of 2 URLs.*no such file.*not by s3"):
        digests(tmp_path, "b.tar", "s3://example/a.tar")


@pytest.mark.processes
@pytest.mark.needs("git")
def test_a_tag_is_looked_up_with_its_commit(tmp_path: Path) -> None:
    repository = tmp_path / "up"
    repository.mkdir()
    git(repository, "init", "-q")
    git(repository, "commit", "-q", "--allow-empty", "-m", "one")
    git(repository, "tag", "-a", "v2.0", "-m", "annotated")
    commit = git(repository, "rev-parse", "HEAD")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    entry = Literal(start=0, end=40, text="0" * 40, key="expected_commit")
    tag = SourceDownload(source=SourceView(git="../up", revision="v2.0"), hashes=((entry, "commit"),))
    (tmp_path / "recipe").mkdir()
    assert upstream.hashes_of_downloads([tag], tmp_path / "recipe", env=env, on_file=ignored) == ({entry: commit}, ())
    missing = SourceDownload(source=SourceView(git=repository.as_uri(), revision="v3.0"))
    with pytest.raises(DownloadFailed, match=r"at v3\.0 does not exist\n  why: the repository has no such tag"):
        upstream.hashes_of_downloads([missing], tmp_path, env=env, on_file=ignored)
    program = SourceDownload(source=SourceView(git="ext::sh -c true", revision="v1"))
    with pytest.raises(DownloadFailed, match="cannot be reached"):
        upstream.hashes_of_downloads([program], tmp_path, env=env, on_file=ignored)
