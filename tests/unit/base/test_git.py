"""Git runs no program that a repository names, and a checkout with changes is not its commit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kiln.base import git
from kiln.base.errors import UsageError
from tests import builders, git_repositories

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.needs("git")]
ENV = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A feedstock in a repository, with one commit."""
    feedstock = tmp_path / "repository" / "feedstock"
    texts = {name: name for name in ("recipe/meta.yaml", "recipe/build.sh", "README.md")}
    builders.write_files(feedstock, {**texts, ".gitignore": "*.log\nbuild_artifacts\n"})
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        git_repositories.git(tmp_path / "repository", *words)
    return feedstock


def commit_of(root: Path) -> str:
    return git.checkout_commit(root, (root / "recipe", root / ".ci_support"), env=ENV)[0]


def marked_unchanged(root: Path) -> None:
    git_repositories.git(root, "update-index", "--assume-unchanged", "recipe/build.sh")
    (root / "recipe/build.sh").write_text("other")


def staged(root: Path) -> None:
    (root / "recipe/build.sh").write_text("other")
    git_repositories.git(root, "add", ".")


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "recipe/build.sh").write_text("other"),
        lambda root: (root / "recipe/build.sh").unlink(),
        lambda root: (root / "recipe/build.sh").chmod(0o755),
        lambda root: (root / "README.md").write_text("other"),
        lambda root: (root / "recipe/new.patch").write_text("untracked"),
        lambda root: (root / "recipe/new.log").write_text("ignored"),
        lambda root: (root / "recipe/link").symlink_to("nowhere"),
        staged,
        marked_unchanged,
    ],
)
def test_a_checkout_with_changes_is_not_its_commit(root: Path, change: Callable[[Path], object]) -> None:
    commit = git_repositories.git(root, "rev-parse", "HEAD")
    assert commit_of(root) == commit
    change(root)
    dirty = commit_of(root)
    assert git.COMMIT.fullmatch(dirty)
    assert (git.base_commit(dirty), git.is_dirty(dirty)) == (commit, True)
    (root / "recipe/meta.yaml").write_text("another change")
    assert commit_of(root) not in {commit, dirty}


def test_files_beside_the_inputs_that_git_does_not_track_are_no_changes(root: Path) -> None:
    (root / "build_artifacts").mkdir()
    (root / "build_artifacts/x").touch()
    (root / "notes.txt").touch()
    assert not git.is_dirty(commit_of(root))


def test_a_folder_outside_of_repositories_has_no_commit(tmp_path: Path) -> None:
    assert git.checkout_commit(tmp_path, (), env=ENV) == ("", "")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("core.fsmonitor", ("status",)),
        ("filter.x.clean", ("add", "--renormalize", ".")),
        ("filter.x.process", ("add", "--renormalize", ".")),
        ("diff.external", ("diff",)),
        ("diff.x.textconv", ("diff",)),
        ("core.sshCommand", ("ls-remote", "ssh://host.invalid/x")),
        ("gpg.program", ("commit", "--gpg-sign", "-m", "x", "--allow-empty")),
        ("core.editor", ("commit", "--allow-empty")),
        ("credential.helper", ("credential", "fill")),
        ("tar.x.command", ("archive", "--format=x", "HEAD")),
    ],
)
def test_a_program_that_a_repository_names_does_not_run(root: Path, setting: str, words: tuple[str, ...]) -> None:
    for value in (setting, "user.name", "user.email"):
        git_repositories.git(root, "config", value, "touch RAN")
    git_repositories.git(root, "config", "filter.x.required", "true")
    (root / ".gitattributes").write_text("* filter=x diff=x\n")
    (root / "recipe/build.sh").write_text("changed")
    git.run(root, *words, env=ENV, timeout=20)
    assert not [*root.rglob("RAN"), *root.parent.glob("RAN")]


def test_hooks_do_not_run(root: Path) -> None:
    hook = root.parent / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch RAN\n")
    hook.chmod(0o755)
    words = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x")
    assert git.run(root, *words, env=ENV).ok
    assert not list(root.parent.rglob("RAN"))


def test_a_bare_repository_in_a_checkout_is_not_used(root: Path) -> None:
    bare = root / "recipe"
    git_repositories.git(root, "init", "-q", "--bare", str(bare))
    git_repositories.git(bare, "--git-dir=.", "config", "core.worktree", str(root))
    assert not git.run(bare, "status", env=ENV).ok


def test_a_setting_that_cannot_be_overridden_is_refused(root: Path) -> None:
    with (root.parent / ".git/config").open("a") as file:
        file.write('[filter "a=b"]\n\tclean = touch RAN\n')
    with pytest.raises(UsageError, match="names a program"):
        git.run(root, "status", env=ENV)
