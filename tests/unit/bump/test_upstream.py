"""Upstream's newest version, by the index of a Python project or the tags of a repository."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kiln import bump
from kiln.bump import upstream
from kiln.bump.recipe_views import SourceView
from tests.bumping import feedstock
from tests.git_repositories import git

if TYPE_CHECKING:
    from pathlib import Path

HASHED = f"https://files.example.org/packages/ab/cd/{'0' * 60}"


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
    assert upstream.project_of(url) == project


def index(folder: Path, **projects: tuple[str, ...]) -> dict[str, str]:
    """Write a simple index as pages on the disk, and return pip's settings for it."""
    for project, names in projects.items():
        page = folder / project / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text("".join(f'<a href="{name}">{name}</a>\n' for name in names))
    settings = {"PIP_INDEX_URL": folder.as_uri(), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    return {"PATH": os.environ["PATH"], "HOME": str(folder), **settings}


@pytest.mark.processes
def test_pips_index_tells_the_newest_release(tmp_path: Path) -> None:
    env = index(
        tmp_path / "simple",
        a=("a-1.0.tar.gz", "a-1.10.tar.gz", "a-1.9.tar.gz", "a-2.0rc1.tar.gz", "a-3.0-py3-none-any.whl"),
    )
    url = "https://example.org/packages/source/{}/{}/{}-1.0.tar.gz"
    known, unknown = (SourceView(urls=(url.format(name[0], name, name),)) for name in ("a", "missing"))
    known_answer, missing = upstream.newest([known, unknown], "1.0", tmp_path, env=env)
    assert (known_answer.newest, known_answer.index, known_answer.is_newer("1.9"), known_answer.is_newer("1.10")) == (
        "1.10", "pip's index, project a", True, False,
    )  # fmt: skip
    assert not missing.newest
    assert "No matching distribution found for missing" in missing.reason


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
    (answer,) = upstream.newest([source], "1.8.0", tmp_path / "recipe", env=env)
    assert (answer.newest, answer.spelled) == ("1.10.0", "1_10_0")
    gone = SourceView(git=(tmp_path / "gone").as_uri(), revision="v1.8.0")
    (answer,) = upstream.newest([gone], "1.8.0", tmp_path, env=env)
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
    assert upstream.repository_and_tag(url) == (repository, tag)
    assert upstream.repository_and_tag("https://example.org/a-1.2.tar.gz") is None


def test_other_sources_are_named_with_the_reason(tmp_path: Path) -> None:
    text = (
        "package:\n  name: a\n  version: 1.0\nsource:\n  - url: https://example.org/a-1.0.tar\n"
        "  - url: https://example.org/b-7.tar\n  - path: here\n"
    )
    version, sources = bump.newest_versions(feedstock(tmp_path, text), env={})
    assert version == "1.0"
    assert {item.source: item.reason for item in sources} == {
        "https://example.org/a-1.0.tar": "no index has the versions of this kind of source",
        "https://example.org/b-7.tar": "it does not depend on the version 1.0",
    }
