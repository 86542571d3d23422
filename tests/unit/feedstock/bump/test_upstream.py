"""Upstream's newest version, by the index of a Python project or the tags of a repository."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from kiln.base import http
from kiln.base.errors import DownloadFailed, RecipeFault
from kiln.conda import pypi
from kiln.feedstock.bump import bump, upstream
from kiln.feedstock.bump.changes import SourceDownload
from kiln.feedstock.bump.literals import Literal, SourceView
from tests.bumping import OLD, bumped, changed_lines, feedstock, ignored, released
from tests.git_repositories import git

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


HASHED = f"https://files.example.org/packages/ab/cd/{'0' * 60}"

HEAD = "package:\n  name: a\n  version: 1.0\nsource:\n"


@pytest.mark.parametrize(
    ("url", "project"),
    [
        ("https://example.org/packages/source/a/absl-py/absl_py-2.3.1.tar.gz", "absl-py"),
        ("https://example.org/packages/py3/a/absl_py/absl_py-2.3.1-py3-none-any.whl", "absl_py"),
        (f"{HASHED}/zope.interface-7.2.tar.gz", "zope.interface"),
        (f"{HASHED}/a-b-1.tar.gz", "a-b"),
        ("https://example.org/a/b/archive/v1.tar.gz", ""),
    ],
)
def test_the_project_is_read_from_the_layout_of_an_index(url: str, project: str) -> None:
    assert pypi.project_of_url(url) == project


@pytest.mark.processes
@pytest.mark.needs("git")
def test_the_tags_of_a_repository_tell_the_newest_release(tmp_path: Path) -> None:
    repository = tmp_path / "up"
    repository.mkdir()
    git(repository, "init", "-q")
    git(repository, "commit", "-q", "--allow-empty", "-m", "one")
    for tag in ("v1_8_0", "v1_10_0", "v1_9_0", "v2_0_0rc1", "other-9_0_0", "v1_11_0-docs"):
        git(repository, "tag", tag)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    source = SourceView(git="../up", revision="v1_8_0")
    (answer,) = upstream.newest_upstream_versions([source], "1.8.0", tmp_path / "recipe", env=env)
    assert (answer.newest, answer.spelled) == ("1.10.0", "1_10_0")
    gone = SourceView(git=(tmp_path / "gone").as_uri(), revision="v1.8.0")
    (answer,) = upstream.newest_upstream_versions([gone], "1.8.0", tmp_path, env=env)
    assert (answer.newest, answer.index) == ("", f"the tags of {gone.git}")
    assert answer.reason


@pytest.mark.parametrize(
    ("url", "repository", "tag"),
    [
        ("https://g.example/o/r/archive/refs/tags/v1.2.tar.gz", "https://g.example/o/r", "v1.2"),
        ("https://g.example/o/r/archive/1.2.zip", "https://g.example/o/r", "1.2"),
        ("https://g.example/o/r/releases/download/r-1.2/r-1.2.exe", "https://g.example/o/r", "r-1.2"),
        ("https://l.example/o/r/-/archive/v1.2/r-v1.2.tar.bz2", "https://l.example/o/r", "v1.2"),
    ],
)
def test_the_repository_and_the_tag_are_read_from_an_archives_url(url: str, repository: str, tag: str) -> None:
    assert upstream.repository_and_tag_of_url(url) == (repository, tag)
    assert upstream.repository_and_tag_of_url("https://example.org/a-1.2.tar.gz") is None


def test_the_page_of_a_folder_tells_the_newest_release_and_others_have_a_reason(tmp_path: Path) -> None:
    released(tmp_path / "up", "a-1.0.tar", "a-1.10.tar", "a-1.9.tar", "a-2.0rc1.tar", "b-3.0.tar")
    released(tmp_path / "up" / "1.0", "c.tar")
    released(tmp_path / "up" / "1.2", "c.tar")
    up = (tmp_path / "up").as_uri()
    urls = (f"{up}/a-1.0.tar", f"{up}/1.0/c.tar", f"{up}/b-7.tar", f"{up}/d/d-1.0.tar", "ftp://e/e-1.0.tar")
    text = "package:\n  name: a\n  version: 1.0\nsource:\n" + "".join(f"  - url: {url}\n" for url in urls)
    version, sources = bump.recipe_and_upstream_versions(feedstock(tmp_path / "f", f"{text}  - path: here\n"), env={})
    assert version == "1.0"
    assert {item.source: item.newest or item.reason for item in sources} == {
        urls[0]: "1.10",
        urls[1]: "1.2",
        urls[2]: "it does not depend on the version 1.0",
        urls[3]: "it has no release that is named as the recipe's",
        urls[4]: "ftp://e/: ftp has no page that lists versions",
    }
    assert sources[0].index == f"the page {up}/"


# An address in a recipe, what upstream has instead, and the line that follows.
RENAMED = [
    ("a-{{ version }}.tar.gz", "a-2.0.zip", "a-{{ version }}.zip"),
    ("v{{ version }}.tar.gz", "2.0.tar.gz", "{{ version }}.tar.gz"),
    ("a-{{ version }}.tar.gz", "a-v2.0.tar.gz", "a-v{{ version }}.tar.gz"),
    (
        "packages/source/d/d-e/d-e-{{ version }}.tar.gz",
        "packages/source/d/d-e/d_e-2.0.tar.gz",
        "packages/source/d/d-e/d_e-{{ version }}.tar.gz",
    ),
    (
        "packages/source/d/d-e/d-e-{{ version }}.zip",
        "packages/source/d/d-e/d_e-2.0.tar.gz",
        "packages/source/d/d-e/d_e-{{ version }}.tar.gz",
    ),
]


@pytest.mark.parametrize("v1", [False, True])
@pytest.mark.parametrize(("old", "new", "written"), RENAMED)
def test_a_file_that_upstream_names_otherwise_is_found_and_its_address_written(
    old: str, new: str, written: str, v1: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "up" / new
    hashes = released(path.parent, path.name)
    monkeypatch.setattr(http, "_require_archive", lambda *_: None)  # the files of a release are texts here
    monkeypatch.setattr(pypi, "configured_indexes", lambda _: ((tmp_path / "simple").as_uri(),))
    page = tmp_path / "simple" / "d-e" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="{path.as_uri()}#sha256={hashes[path.name]}">x</a>')
    up = (tmp_path / "up").as_uri()
    old, written = (text.replace("{{", "${{") if v1 else text for text in (old, written))
    text = (
        'context:\n  version: "1.0"\npackage:\n  name: a\n  version: ${{ version }}\n'
        if v1
        else '{% set version = "1.0" %}\npackage:\n  name: a\n  version: {{ version }}\n'
    )
    plan = bumped(feedstock(tmp_path / "f", f"{text}source:\n  url: {up}/{old}\n  sha256: {OLD}\n", v1=v1), "2.0")
    changed = list(changed_lines(plan).values())
    assert changed[1:] == [f"url: {up}/{written}", f"sha256: {hashes[path.name]}"]
    assert "does not exist; the recipe has" in plan.notes[0]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (
            "https://g.example/o/r/releases/download/v{{ version }}/r-{{ version }}.tar.gz",
            "https://g.example/o/r/archive/v{{ version }}.tar.gz",
        ),
        (
            "https://g.example/o/r/archive/refs/tags/v{{ version }}.tar.gz",
            "https://g.example/o/r/releases/download/v{{ version }}/r-{{ version }}.tar.gz",
        ),
        ("https://g.example/o/r/archive/{{ version }}.zip", "https://g.example/o/r/archive/v{{ version }}.zip"),
    ],
)
def test_a_repository_may_have_files_of_a_release_or_the_archive_of_its_tag(address: str, expected: str) -> None:
    assert expected in upstream.respelled_addresses(address, (), "2.0")


def test_a_version_is_not_found_at_the_end_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "d" / "index.html"
    page.parent.mkdir()
    names = ("d-2.3.7.tar.gz", "d-13.7.tar.gz", "d-3.7.tar.gz")
    page.write_text("".join(f'<a href="{name}#sha256={"0" * 64}">x</a>' for name in names))
    monkeypatch.setattr(pypi, "configured_indexes", lambda _: (tmp_path.as_uri(),))
    urls = ("https://example.org/packages/source/d/d/d-3.7.zip",)
    assert upstream.source_archives_on_package_index(urls, "3.7", {}) == (f"{page.parent.as_uri()}/d-3.7.tar.gz",)


def test_hashes_of_the_same_version_are_renewed(tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "a-1.0.tar", "b.tar")
    up = (tmp_path / "up").as_uri()
    text = (
        f"{HEAD}  - url: {up}/a-1.0.tar\n    sha256: {OLD}\n  - url: {up}/b.tar\n    sha256: {OLD[::-1]}\n"
        f"  - url: {up}/none.tar\nbuild:\n  number: 3\n"
    )
    plan = bump.prepare_hash_refresh(feedstock(tmp_path / "f", text), env={}, on_file=ignored)
    assert changed_lines(plan) == {6: f"sha256: {hashes['a-1.0.tar']}", 8: f"sha256: {hashes['b.tar']}"}
    assert (plan.old, plan.new, plan.numbers) == ("1.0", "1.0", ((3,), (3,)))
    with pytest.raises(RecipeFault, match="the recipe has no hash of a source"):
        bump.prepare_hash_refresh(feedstock(tmp_path / "g", f"{HEAD}  path: src\n"), env={}, on_file=ignored)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return the commits, by their tags, of a repository with two releases and an untagged commit, and its ``url``."""
    repository = tmp_path_factory.mktemp("up")
    git(repository, "init", "-q")
    commits = {"url": repository.as_uri()}
    for tag in ("v1_0", "", "v2_0"):
        git(repository, "commit", "-q", "--allow-empty", "-m", f"commit {tag}")
        commits[tag] = git(repository, "rev-parse", "HEAD").strip()
        if tag:
            git(repository, "tag", *(("-a", "-m", tag) if tag == "v2_0" else ()), tag)
    return commits


def env(tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}


@pytest.mark.processes
@pytest.mark.needs("git")
@pytest.mark.parametrize("length", [40, 7])
def test_a_commit_of_the_old_versions_tag_becomes_that_of_the_new_one(
    length: int, up: Mapping[str, str], tmp_path: Path
) -> None:
    text = f'{HEAD}  git_url: {up["url"]}\n  git_rev: "{up["v1_0"][:length]}"\n'
    plan = bumped(feedstock(tmp_path / "f", text), "2.0", env(tmp_path))
    assert changed_lines(plan) == {3: "version: 2.0", 6: f'git_rev: "{up["v2_0"][:length]}"'}


@pytest.mark.processes
@pytest.mark.needs("git")
def test_a_commit_of_a_recipe_yamls_context(up: Mapping[str, str], tmp_path: Path) -> None:
    text = f"context:\n  commit: {up['v1_0']}\n{HEAD}  git: {up['url']}\n  rev: ${{{{ commit }}}}\n"
    plan = bumped(feedstock(tmp_path / "f", text, v1=True), "2.0", env(tmp_path))
    assert changed_lines(plan) == {2: f"commit: {up['v2_0']}", 5: "version: 2.0"}


@pytest.mark.processes
@pytest.mark.needs("git")
def test_the_expected_commit_of_a_tag_is_that_of_the_new_one(up: Mapping[str, str], tmp_path: Path) -> None:
    tag = "v${{ version | replace('.', '_') }}"
    source = f"  git: {up['url']}\n  tag: {tag}\n  expected_commit: {up['v1_0']}\n"
    text = f"context:\n  version: '1.0'\npackage:\n  name: a\n  version: ${{{{ version }}}}\nsource:\n{source}"
    plan = bumped(feedstock(tmp_path / "f", text, v1=True), "2.0", env(tmp_path))
    assert changed_lines(plan) == {2: "version: '2.0'", 9: f"expected_commit: {up['v2_0']}"}
    with pytest.raises(DownloadFailed, match=r"at v3_0 does not exist\n  why: the repository has no such tag"):
        bumped(feedstock(tmp_path / "f", text, v1=True), "3.0", env(tmp_path))


@pytest.mark.processes
@pytest.mark.needs("git")
def test_a_commit_without_a_tag_stays_beside_a_source_with_the_version(up: Mapping[str, str], tmp_path: Path) -> None:
    new = released(tmp_path / "files", "a-2.0.tar")["a-2.0.tar"]
    url = f"{(tmp_path / 'files').as_uri()}/a-{{{{ PKG_VERSION }}}}.tar"
    text = f"{HEAD}  - url: {url}\n    sha256: {OLD}\n  - git_url: {up['url']}\n    git_rev: {up['']}\n"
    plan = bumped(feedstock(tmp_path / "f", text), "2.0", env(tmp_path))
    assert changed_lines(plan) == {3: "version: 2.0", 6: f"sha256: {new}"}
    assert plan.unchanged == (f"{up['url']} at {up['']}",)


@pytest.mark.processes
@pytest.mark.needs("git")
def test_a_commit_that_no_tag_tells_is_refused_by_its_line(up: Mapping[str, str], tmp_path: Path) -> None:
    text = f"{HEAD}  git_url: {up['url']}\n  git_rev: {up['']}\n"
    with pytest.raises(RecipeFault, match=r"recipe/meta\.yaml:6:12: no source depends on the version"):
        bumped(feedstock(tmp_path / "f", text), "2.0", env(tmp_path))
    text = f"{HEAD}  git_url: {up['url']}\n  git_rev: {up['v1_0']}\n"
    with pytest.raises(DownloadFailed, match=r"has no tag v3_0\n  why: the recipe has the commit of v1_0"):
        bumped(feedstock(tmp_path / "f", text), "3.0", env(tmp_path))


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
def test_a_repository_cannot_name_a_program(tmp_path: Path) -> None:
    program = SourceDownload(source=SourceView(git="ext::sh -c true", revision="v1"))
    with pytest.raises(DownloadFailed, match="cannot be reached"):
        upstream.hashes_of_downloads([program], tmp_path, env=env(tmp_path), on_file=ignored)
