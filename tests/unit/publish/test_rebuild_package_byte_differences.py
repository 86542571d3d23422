"""The differences of two packages: which files, and where in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.publish.rebuild import described_content_difference, described_differences, feedstock_folder_in_placeholders
from tests.packages import conda_package, release_package

if TYPE_CHECKING:
    from pathlib import Path


def test_each_file_is_named_with_the_place_where_it_begins_to_differ(tmp_path: Path) -> None:
    common = {"share/same": b"same"}
    one = {"share/text": b"a\nb c\n", "share/binary": b"\xff\x00\x01", "share/mine": b"1", **common}
    two = {"share/text": b"a\nb d\n", "share/binary": b"\xff\x00\x02\x03", "share/yours": b"1", **common}
    first = release_package(tmp_path / "one", "a", payload=one)
    second = release_package(tmp_path / "two", "a", payload=two)
    lines = described_differences(first, second)
    assert "share/text: content (line 2: 'b c' and 'b d')" in lines
    assert "share/binary: content (from byte 2; 3 and 4 bytes)" in lines
    assert "share/mine: only in the first" in lines
    assert "share/yours: only in the second" in lines
    assert not any("same" in line for line in lines)
    assert described_differences(first, first) == ["only the compression: all files are identical"]


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (b"a\n", b"a\nb\n", " (line 2: '' and 'b')"),
        (b"a", b"a\nb", " (1 and 2 lines)"),
        (b"x" * 500 + b"1", b"x" * 500 + b"2", f" (line 1: '...{'x' * 30}1' and '...{'x' * 30}2')"),
        (b"\x1b[31m", b"\x1b[32m", r" (line 1: '\x1b[31m' and '\x1b[32m')"),
        (None, b"a", ""),
    ],
)
def test_the_first_difference_is_shown_without_hidden_characters(
    one: bytes | None, other: bytes | None, words: str
) -> None:
    assert described_content_difference(one, other) == words


def test_the_folder_of_a_build_is_in_the_placeholders_of_a_package(tmp_path: Path) -> None:
    paths = {"paths": [{"_path": "a"}, {"_path": "b", "prefix_placeholder": "/f/s/build_artifacts/work/c/host_env_pl"}]}
    assert feedstock_folder_in_placeholders(conda_package(tmp_path / "a-1-0.conda", {"paths.json": paths})) == "/f/s"
    assert feedstock_folder_in_placeholders(conda_package(tmp_path / "b-1-0.conda", {"paths.json": {"paths": 7}})) == ""
    assert feedstock_folder_in_placeholders(release_package(tmp_path, "c")) == ""
