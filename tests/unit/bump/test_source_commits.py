"""A source at a commit gets the commit of the new version, if the repository has a tag for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kiln.errors import DownloadFailed, RecipeFault
from tests.bumping import OLD, bumped, changed_lines, feedstock, released
from tests.git_repositories import git

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.needs("git")]

HEAD = "package:\n  name: a\n  version: 1.0\nsource:\n"


@pytest.fixture
def up(tmp_path: Path) -> dict[str, str]:
    """A repository with two releases, an untagged commit and an environment; the commits by their tags."""
    repository = tmp_path / "up"
    repository.mkdir()
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


@pytest.mark.parametrize("length", [40, 7])
def test_a_commit_of_the_old_versions_tag_becomes_that_of_the_new_one(
    length: int, up: dict[str, str], tmp_path: Path
) -> None:
    text = f'{HEAD}  git_url: {up["url"]}\n  git_rev: "{up["v1_0"][:length]}"\n'
    plan = bumped(feedstock(tmp_path / "f", text), "2.0", env(tmp_path))
    assert changed_lines(plan) == {3: "version: 2.0", 6: f'git_rev: "{up["v2_0"][:length]}"'}


def test_a_commit_of_a_recipe_yamls_context(up: dict[str, str], tmp_path: Path) -> None:
    text = f"context:\n  commit: {up['v1_0']}\n{HEAD}  git: {up['url']}\n  rev: ${{{{ commit }}}}\n"
    plan = bumped(feedstock(tmp_path / "f", text, v1=True), "2.0", env(tmp_path))
    assert changed_lines(plan) == {2: f"commit: {up['v2_0']}", 5: "version: 2.0"}


def test_the_expected_commit_of_a_tag_is_that_of_the_new_one(up: dict[str, str], tmp_path: Path) -> None:
    tag = "v${{ version | replace('.', '_') }}"
    source = f"  git: {up['url']}\n  tag: {tag}\n  expected_commit: {up['v1_0']}\n"
    text = f"context:\n  version: '1.0'\npackage:\n  name: a\n  version: ${{{{ version }}}}\nsource:\n{source}"
    plan = bumped(feedstock(tmp_path / "f", text, v1=True), "2.0", env(tmp_path))
    assert changed_lines(plan) == {2: "version: '2.0'", 9: f"expected_commit: {up['v2_0']}"}
    with pytest.raises(DownloadFailed, match=r"at v3_0 does not exist\n  why: the repository has no such tag"):
        bumped(feedstock(tmp_path / "f", text, v1=True), "3.0", env(tmp_path))


def test_a_commit_without_a_tag_stays_beside_a_source_with_the_version(up: dict[str, str], tmp_path: Path) -> None:
    new = released(tmp_path / "files", "a-2.0.tar")["a-2.0.tar"]
    url = f"{(tmp_path / 'files').as_uri()}/a-{{{{ PKG_VERSION }}}}.tar"
    text = f"{HEAD}  - url: {url}\n    sha256: {OLD}\n  - git_url: {up['url']}\n    git_rev: {up['']}\n"
    plan = bumped(feedstock(tmp_path / "f", text), "2.0", env(tmp_path))
    assert changed_lines(plan) == {3: "version: 2.0", 6: f"sha256: {new}"}
    assert plan.unchanged == (f"{up['url']} at {up['']}",)


def test_a_commit_that_no_tag_tells_is_refused_by_its_line(up: dict[str, str], tmp_path: Path) -> None:
    text = f"{HEAD}  git_url: {up['url']}\n  git_rev: {up['']}\n"
    with pytest.raises(RecipeFault, match=r"recipe/meta\.yaml:6:12: no source depends on the version"):
        bumped(feedstock(tmp_path / "f", text), "2.0", env(tmp_path))
    text = f"{HEAD}  git_url: {up['url']}\n  git_rev: {up['v1_0']}\n"
    with pytest.raises(DownloadFailed, match=r"has no tag v3_0\n  why: the recipe has the commit of v1_0"):
        bumped(feedstock(tmp_path / "f", text), "3.0", env(tmp_path))
