"""conda-forge.yml can forbid a publication."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.base.position import Place
from kiln.publish import targets
from kiln.publish.stores import target as stores_target
from tests import publishing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def require(folder: Path, text: str, *, target: str = "out", branch: str = "", env: Mapping[str, str] = {}) -> None:
    path = folder / "conda-forge.yml"
    path.write_text(text)
    targets.require_publication_allowed(path, target, environment=env, current_branch=lambda: branch)


@pytest.mark.parametrize("name", ["anaconda:", "ftp://host/channel", "s3:bucket", "https:/host/x", "conda-forge"])
def test_what_names_no_channel_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        targets.parse_target(name, {"ANACONDA_API_TOKEN": "x"}, journals=tmp_path)


def test_a_folder_has_one_address(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    channel = targets.parse_target(f"{tmp_path}/other/../channel", {}, journals=tmp_path)
    assert channel.channel_url() == (tmp_path / "channel").as_uri()


ON_MAIN, OFF = "upload_on_branch: main\n", "github_actions: {upload_packages: false}\n"
FORBIDDEN = [
    (f"bot: {{}}\n{ON_MAIN}", {"branch": "dev"}, 2, "upload_on_branch is 'main', and this is dev"),
    (ON_MAIN, {}, 1, "upload_on_branch is 'main', and this is an unknown branch"),
    (ON_MAIN, {"branch": "main", "env": {"GIT_BRANCH": "dev"}}, 1, "upload_on_branch is 'main', and this is dev"),
    (OFF, {"env": {"CI": "github_actions"}}, 1, "github_actions.upload_packages is false"),
    (OFF, {"env": {"CI": "true", "GITHUB_ACTIONS": "true"}}, 1, "github_actions.upload_packages is false"),
    ("azure: {upload_packages: false}\n", {"env": {"TF_BUILD": "True"}}, 1, "azure.upload_packages is false"),
    (
        "private_upload: true\n",
        {"target": "anaconda:me"},
        1,
        "private_upload is true, and kiln cannot ask anaconda.org for it",
    ),
]


@pytest.mark.parametrize(("text", "arguments", "line", "what"), FORBIDDEN)
def test_a_forbidden_publication_is_refused(
    tmp_path: Path, text: str, arguments: dict[str, str], line: int, what: str
) -> None:
    with pytest.raises(UsageError) as caught:
        require(tmp_path, text, **arguments)  # type: ignore[arg-type]
    assert (caught.value.what, caught.value.at) == (what, Place(file="conda-forge.yml", line=line, column=1))


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", {}),
        ("upload_on_branch: main\n", {"branch": "main"}),
        ("upload_on_branch: main\n", {"branch": "x", "env": {"GIT_BRANCH": "main"}}),
        ("github_actions: {upload_packages: false}\n", {}),
        ("github_actions: {upload_packages: false}\n", {"env": {"CI": "azure"}}),
        ("private_upload: true\n", {"target": "s3://bucket"}),
    ],
)
def test_any_other_is_allowed(tmp_path: Path, text: str, arguments: dict[str, str]) -> None:
    require(tmp_path, text, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("delete", [False, True])
def test_a_withdrawn_package_is_held_without_a_hash(tmp_path: Path, delete: bool) -> None:
    publishing.put(tmp_path, ("old", "kept"))
    channel = publishing.target(tmp_path)
    stores_target.yank_packages(channel, ["old-1-0.conda"], delete=delete)
    held = targets.held_packages(channel)
    assert {path: bool(sha256) for path, sha256 in held.items()} == {
        "linux-64/kept-1-0.conda": True,
        "linux-64/old-1-0.conda": False,
    }
