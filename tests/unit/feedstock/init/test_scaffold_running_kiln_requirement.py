"""A feedstock names the kiln that made it by something that cannot become another project: wheel, commit or version."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import UsageError
from kiln.feedstock.init import scaffold
from kiln.feedstock.init.scaffold import parse_given_requirement, requirement_of_pip_origin, url_of_git_remote
from tests.git_repositories import git

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (
            {"url": "https://h.example/kiln.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
            f"kiln @ git+https://h.example/kiln.git@{COMMIT}",
        ),
        (
            {
                "url": "https://me:secret@h.example/kiln",
                "vcs_info": {"vcs": "git", "commit_id": COMMIT},
                "subdirectory": "a",
            },
            f"kiln @ git+https://h.example/kiln@{COMMIT}#subdirectory=a",
        ),
        (
            {"url": "https://h.example/kiln-1-py3-none-any.whl", "archive_info": {"hashes": {"sha256": "ab"}}},
            "kiln @ https://h.example/kiln-1-py3-none-any.whl#sha256=ab",
        ),
        (
            {"url": "https://h.example/kiln-1.tar.gz", "archive_info": {"hash": "sha256=cd"}},
            "kiln @ https://h.example/kiln-1.tar.gz#sha256=cd",
        ),
        ({"url": "file:///w/kiln.whl", "archive_info": {}}, "kiln @ file:///w/kiln.whl"),
        ({"url": "https://me:secret@h.example/a+b/k.whl", "archive_info": {}}, "kiln @ https://h.example/a+b/k.whl"),
        ({"url": "file:///w/clone", "dir_info": {"editable": True}}, "kiln @ file:///w/clone"),
    ],
)
def test_pips_record_of_the_origin_is_pinned_without_credentials(origin: Mapping[str, Any], line: str) -> None:
    requirement = requirement_of_pip_origin(origin)
    assert requirement.line == line
    assert bool(requirement.note) == line.startswith("kiln @ file:")


def test_a_version_alone_is_used_only_where_pip_took_kiln_from_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaffold, "_installed_version_and_origin", lambda: ("1.2", None))
    assert scaffold.requirement_of_running_kiln(env={}).line == "kiln==1.2"


def test_an_unknown_origin_is_refused_and_not_guessed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scaffold, "_installed_version_and_origin", lambda: None)
    monkeypatch.setattr(scaffold, "PACKAGE_ROOT", tmp_path)
    with pytest.raises(UsageError, match="the origin of this kiln is unknown") as caught:
        scaffold.requirement_of_running_kiln(env={"PATH": ""})
    assert "--kiln" in caught.value.hint
    assert "kiln==" not in caught.value.hint


@pytest.mark.processes
def test_a_clone_gives_its_commit_at_the_repository_that_it_came_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scaffold, "_installed_version_and_origin", lambda: None)
    monkeypatch.setattr(scaffold, "PACKAGE_ROOT", tmp_path)
    env = {"PATH": os.environ["PATH"]}
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    assert scaffold.requirement_of_running_kiln(env=env).line == f"kiln @ {tmp_path.as_uri()}"
    git(tmp_path, "remote", "add", "origin", "https://u:p@h.example/kiln.git")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert scaffold.requirement_of_running_kiln(env=env).line == f"kiln @ git+https://h.example/kiln.git@{commit}"
    assert not scaffold.requirement_of_running_kiln(env=env).note
    (tmp_path / "kiln").mkdir()
    (tmp_path / "kiln" / "new.py").touch()
    assert "not committed" in scaffold.requirement_of_running_kiln(env=env).note


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("git@h.example:me/kiln.git", "ssh://git@h.example/me/kiln.git"),
        ("ssh://git@h.example/kiln", "ssh://git@h.example/kiln"),
        ("ssh://git:word@h.example/kiln", "ssh://git@h.example/kiln"),
        ("https://h.example/kiln", "https://h.example/kiln"),
        ("/srv/kiln", None),
        ("file:///srv/kiln", None),
    ],
)
def test_remotes_become_addresses_for_pip(remote: str, address: str | None) -> None:
    assert url_of_git_remote(remote) == address


@pytest.mark.parametrize(
    "text",
    [
        "kiln==0.1.0",
        f"kiln @ git+https://h.example/kiln@{COMMIT}",
        f"kiln @ git+ssh://git@h.example/kiln@{COMMIT}",
        f"kiln @ git+https://h.example/@me/kiln@{COMMIT}#subdirectory=a",
        "kiln @ https://h.example/kiln-1-py3-none-any.whl",
    ],
)
def test_a_pinned_requirement_is_taken(text: str) -> None:
    assert parse_given_requirement(text).line == text
    assert parse_given_requirement(text.removeprefix("kiln @ ")).line == text


def test_a_path_becomes_an_address(tmp_path: Path) -> None:
    (tmp_path / "kiln.whl").touch()
    assert parse_given_requirement(str(tmp_path / "kiln.whl")).line == f"kiln @ {tmp_path.as_uri()}/kiln.whl"
    assert parse_given_requirement(f"kiln @ {tmp_path.as_uri()}/kiln.whl").note


@pytest.mark.parametrize("name", ["a.whl", "a b.whl", "a#1%20.whl"])
def test_a_file_is_given_by_its_path_or_by_any_form_of_its_url(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    url = (tmp_path / name).as_uri()
    for text in (
        str(tmp_path / name),
        url,
        url.replace("file://", "file:"),
        url.replace("file://", "file://localhost"),
    ):
        assert parse_given_requirement(text).line == f"kiln @ {url}"
    assert parse_given_requirement(f"{url}#sha256=ab").line == f"kiln @ {url}#sha256=ab"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kiln", "leaves the version open"),
        ("kiln>=0.1", "leaves the version open"),
        ("kiln==0.1,<1", "leaves the version open"),
        ("kiln==1.*", "leaves the version open"),
        ("kiln===1.*", "leaves the version open"),
        ("kiln @ git+https://h.example/kiln", "names no commit"),
        ("git+https://h.example/kiln@", "names no commit"),
        ("git+https://h.example/kiln@#subdirectory=a", "names no commit"),
        ("git+https://h.example/@me/kiln", "names no commit"),
        ("git+https://h.example/@me", "names no commit"),
        ("file://h.example/tmp", "file://h.example/tmp does not exist"),
        ("file://[/kiln", "is not a URL"),
        ("file:/no/such%20file.whl", "/no/such file.whl does not exist"),
        ("kiln @ git+https://u:p@h.example/kiln", "names no commit"),
        ("oven==1", "names oven"),
        ("not a requirement", "is not a requirement"),
        ("/no/such.whl", "does not exist"),
    ],
)
def test_an_open_or_invalid_requirement_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        parse_given_requirement(text)
    assert caught.value.hint.startswith("--kiln")
    assert "kiln==" not in caught.value.hint  # another project has the name on PyPI
    assert "u:p" not in str(caught.value)
