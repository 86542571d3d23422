"""Places of an archive besides its own address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.build.engine.source_plan import SourceMirrors, recipe_with_mirror_urls

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://example.org/project/archive/v1.0.tar.gz"
SHA = "0" * 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "v1.0.tar.gz").touch()
    return tmp_path


def test_a_fetched_source_of_the_same_hash_comes_before_the_users_folder(folder: Path) -> None:
    (folder / "fetched" / SHA).mkdir(parents=True)
    (folder / "fetched" / SHA / "v1.0.tar.gz").touch()
    origins = SourceMirrors(folder=folder, by_hash=folder / "fetched")
    users = f"file://{folder}/v1.0.tar.gz"
    result = recipe_with_mirror_urls(
        {"source": [{"url": [URL], "sha256": SHA}, {"url": [URL], "sha256": "1" * 64}, {"url": [URL]}, {"path": "/s"}]},
        origins,
    )
    assert result["source"][2:] == [{"url": [URL]}, {"path": "/s"}], "nothing is verified there"
    assert recipe_with_mirror_urls({"build": {}}, origins) == {"build": {}}
    assert result["source"][0]["url"] == [f"file://{folder}/fetched/{SHA}/v1.0.tar.gz", users, URL]
    assert result["source"][1]["url"] == [users, URL]


def test_every_address_of_a_file_is_mirrored(folder: Path) -> None:
    other = "https://other.example.org/v1.0.tar.gz"
    result = SourceMirrors(folder=folder, mirror="http://m").urls_to_try([URL, other])
    mirrored = ["http://m/example.org/project/archive/v1.0.tar.gz", "http://m/other.example.org/v1.0.tar.gz"]
    assert result == [f"file://{folder}/v1.0.tar.gz", *mirrored, URL, other]


def test_a_file_that_is_not_in_the_folder_is_not_looked_for_there(tmp_path: Path) -> None:
    assert SourceMirrors(folder=tmp_path).urls_to_try([URL]) == [URL]


@pytest.mark.parametrize("url", ["file:///x/v1.0.tar.gz", "https://example.org/", "ftp://example.org/v1.0.tar.gz"])
def test_local_and_nameless_sources_are_unchanged(folder: Path, url: str) -> None:
    assert SourceMirrors(folder=folder).urls_to_try([url]) == [url]


def test_a_name_never_leads_outside_the_folder(folder: Path) -> None:
    (folder / "inner").mkdir()
    assert (
        SourceMirrors(folder=folder / "inner")
        .urls_to_try(["https://example.org/a/%2E%2E%2Fv1.0.tar.gz"])[0]
        .startswith("https:")
    )
