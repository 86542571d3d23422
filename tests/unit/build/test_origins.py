"""Where an archive may come from besides its own address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.build.origins import Origins, applied

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://example.org/project/archive/v1.0.tar.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "v1.0.tar.gz").touch()
    return tmp_path


def test_a_folder_comes_first_then_the_mirror_then_the_address_itself(folder: Path) -> None:
    found = Origins(folder=folder, mirror="https://mirror.example.net/all/").of([URL])
    assert found == [
        f"file://{folder}/v1.0.tar.gz",
        "https://mirror.example.net/all/example.org/project/archive/v1.0.tar.gz",
        URL,
    ]


def test_every_address_of_a_file_is_mirrored(folder: Path) -> None:
    other = "https://other.example.org/v1.0.tar.gz"
    found = Origins(folder=folder, mirror="http://m").of([URL, other])
    mirrored = ["http://m/example.org/project/archive/v1.0.tar.gz", "http://m/other.example.org/v1.0.tar.gz"]
    assert found == [f"file://{folder}/v1.0.tar.gz", *mirrored, URL, other]


def test_a_file_that_is_not_in_the_folder_is_not_looked_for_there(tmp_path: Path) -> None:
    assert Origins(folder=tmp_path).of([URL]) == [URL]


@pytest.mark.parametrize("url", ["file:///x/v1.0.tar.gz", "https://example.org/", "ftp://example.org/v1.0.tar.gz"])
def test_what_has_no_name_or_is_not_on_the_web_stays_as_it_is(folder: Path, url: str) -> None:
    assert Origins(folder=folder).of([url]) == [url]


def test_a_name_leads_to_no_file_outside_of_the_folder(folder: Path) -> None:
    (folder / "inner").mkdir()
    assert Origins(folder=folder / "inner").of(["https://example.org/a/%2E%2E%2Fv1.0.tar.gz"])[0].startswith("https:")


def test_only_what_has_a_hash_is_taken_from_elsewhere(folder: Path) -> None:
    hashed, plain, local = {"url": [URL], "sha256": "0" * 64}, {"url": [URL]}, {"path": "/src"}
    found = applied({"source": [hashed, plain, local], "build": {}}, Origins(folder=folder))
    assert found == {
        "source": [{"url": [f"file://{folder}/v1.0.tar.gz", URL], "sha256": "0" * 64}, plain, local],
        "build": {},
    }
    assert applied({"build": {}}, Origins(folder=folder)) == {"build": {}}
