"""``kiln init`` makes a feedstock that needs no other command, or adds to one without changing it."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import FeedstockNotFound, NotWritable, UsageError
from kiln.cli import main
from kiln.cli.main import make_pasteable
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

META = "package:\n  name: a\n  version: '1'\n"
REQUIREMENT = ("--kiln", "kiln==1.2.3")


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user whose git names no GitHub user."""
    monkeypatch.setenv("LOGNAME", "jane")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def init(folder: Path, *words: str) -> int:
    return main.dispatch(["-C", str(folder), "init", *words, *REQUIREMENT])


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.relative_to(folder).parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.processes
@pytest.mark.parametrize("form", ["v0", "v1"])
def test_a_feedstock_from_nothing_is_up_to_date(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    assert init(tmp_path, "tool", "--format", form, "--maintainer", "jane", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    root = tmp_path / "tool-feedstock"
    assert report["folder"] == str(root)
    assert sorted(report["added"]) == sorted(contents(root))
    assert {".ci_support/linux_64_.yaml", ".github/workflows/build.yml"} <= set(report["added"])
    assert main.dispatch(["-C", str(root), "rerender", "--check"]) == 0
    assert "kiln==1.2.3\n" in (root / "requirements" / "kiln.txt").read_text()


@pytest.mark.processes
def test_the_maintainer_is_the_login_where_git_names_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path, "tool", "--folder", "here") == 0
    assert "    - jane\n" in (tmp_path / "here" / "recipe" / "recipe.yaml").read_text()
    printed = capsys.readouterr().out
    assert "note: extra/recipe-maintainers is jane" in printed
    commands = make_pasteable("kiln lint; kiln build --all", tmp_path / "here")
    assert printed.splitlines()[-1] == f"next: {commands}"


@pytest.mark.processes
def test_nothing_is_overwritten(tmp_path: Path) -> None:
    words = ("tool", "--maintainer", "jane")
    assert init(tmp_path, *words) == 0
    before = contents(tmp_path)
    with pytest.raises(NotWritable):
        init(tmp_path, *words, "--format", "v0")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["a b", "a,b", "a'b"])
def test_nothing_is_written_into_a_folder_that_no_build_takes(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no feedstock can be in"):
        init(tmp_path / name, "tool", "--maintainer", "jane")
    assert contents(tmp_path) == {}


def git(folder: Path, *words: str) -> str:
    argv = ("git", "-C", str(folder), *words)
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.processes
def test_a_new_feedstock_is_committed_so_that_its_packages_name_a_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text("[user]\n  name = Jane\n  email = jane@example.org\n")
    assert init(tmp_path, "tool", "--maintainer", "jane", "--json") == 0
    root = tmp_path / "tool-feedstock"
    assert git(root, "log", "--format=%s %an") == "tool: a new feedstock Jane"
    assert git(root, "status", "--porcelain") == ""
    assert sorted(git(root, "ls-files").splitlines()) == sorted(json.loads(capsys.readouterr().out)["added"])


@pytest.mark.processes
def test_a_commit_that_cannot_be_made_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path, "tool", "--maintainer", "jane") == 0
    assert "note: git has no user.name and user.email: set them, then git -C" in capsys.readouterr().out
    assert git(tmp_path / "tool-feedstock", "diff", "--cached", "--name-only") != ""
    (tmp_path / "checkout" / ".git").mkdir(parents=True)
    assert init(tmp_path / "checkout", "tool", "--maintainer", "jane") == 0
    assert "note: commit it before you publish: git -C" in capsys.readouterr().out
    assert not (tmp_path / "checkout" / "tool-feedstock" / ".git").exists()


def test_a_feedstock_is_completed_and_no_file_of_it_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = builders.feedstock(tmp_path / "f", META, files={".gitignore": "theirs\n"})
    before = contents(feedstock.root)
    assert init(feedstock.root, "--json") == 0
    after = contents(feedstock.root)
    report = json.loads(capsys.readouterr().out)
    assert {name: after[name] for name in before} == before
    assert sorted(report["added"]) == sorted(after.keys() - before.keys())
    assert {"build-locally.py", "outputs.txt", ".github/workflows/build.yml"} <= after.keys()
    assert report["kept"] == ["conda-forge.yml", ".gitignore"]
    assert after["outputs.txt"].decode().splitlines()[1:] == ["a"]
    assert init(feedstock.root) == 0
    assert contents(feedstock.root) == after


def test_a_checkout_with_configs_keeps_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = builders.feedstock(tmp_path / "f", META)
    assert main.dispatch(["-C", str(feedstock.root), "rerender"]) == 0
    (feedstock.config_folder / "linux_64_.yaml").write_text("target_platform:\n- linux-64\nmine:\n- '1'\n")
    capsys.readouterr()
    smithy = {"build-locally.py": "import subprocess\n", ".github/workflows/conda-build.yml": "theirs\n"}
    builders.write_files(feedstock.root, smithy)
    before = contents(feedstock.root)
    assert init(feedstock.root, "--json") == 0
    after, report = contents(feedstock.root), json.loads(capsys.readouterr().out)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {".gitignore", "outputs.txt"}
    assert ".ci_support" in report["kept"]
    assert any("conda-smithy's .github/workflows/conda-build.yml builds" in note for note in report["notes"])


def test_a_recipe_that_needs_a_pinning_is_written_and_what_is_missing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feedstock = builders.feedstock(tmp_path, META + "requirements:\n  host:\n    - zlib {{ zlib_version }}\n")
    assert init(feedstock.root, "--pinning-channel", "none") == 0
    printed = capsys.readouterr().out
    assert ".ci_support and the workflow are not written: zlib_version has no value without a pinning" in printed
    assert printed.splitlines()[-1].endswith("rerender -e PINNING/conda_build_config.yaml")
    assert not feedstock.config_folder.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pypi",), "--pypi needs the name of a new package"),
        (("--format", "v0"), "--format needs the name"),
        (("Tool",), "cannot be the name of a package"),
        (("tool", "--version", "1-2"), "cannot be a version"),
        (("tool", "--maintainer", "jane doe"), "not a GitHub user"),
        (("tool", "--kiln", "kiln"), "leaves the version open"),
    ],
)
def test_invalid_words_are_refused_before_anything_is_written(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    given = words if "--kiln" in words else (*words, *REQUIREMENT)
    given = given if "--maintainer" in words or not words[0].lower().startswith("t") else (*given, "--maintainer", "j")
    with pytest.raises(UsageError, match=message):
        main.dispatch(["-C", str(tmp_path), "init", *given])
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - also of hidden files


def test_a_folder_without_a_recipe_is_not_completed(tmp_path: Path) -> None:
    with pytest.raises(FeedstockNotFound):
        init(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_files_that_git_ignores_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builders.feedstock(tmp_path, META)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("*\n!/conda-forge.yml\n!/**/\n!/recipe/**\n!/.ci_support/**\n")
    assert init(tmp_path, "--no-pinning", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    [note] = [note for note in report["notes"] if "git add -f" in note]
    named = set(note.partition("git add -f ")[2].split())
    assert {"outputs.txt", "build-locally.py", "requirements/kiln.txt"} <= named
    assert "conda-forge.yml" not in named
