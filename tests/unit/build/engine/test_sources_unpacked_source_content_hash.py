"""The hash of a folder's contents is conda-build's: its bytes are those that CEP 16 describes."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BuildFailed
from kiln.build.engine.sources import folder_content_hash

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with text, with other bytes, with a link and an empty folder."""
    folder = tmp_path / "tree"
    (folder / "b" / "deep").mkdir(parents=True)
    (folder / "b" / "deep" / "x").write_bytes(b"one\r\ntwo\rthree\n")
    (folder / "b.bin").write_bytes(b"text\r\n\xff")
    (folder / "a").symlink_to("b/nowhere")
    (folder / "b" / "empty").mkdir()
    return folder


# The order is that of the paths as text, in which "b.bin" comes before "b/deep".
PARTS = (b"aLb/nowhere-", b"bD-", b"b.binFtext\r\n\xff-", b"b/deepD-", b"b/deep/xFone\ntwo\nthree\n-", b"b/emptyD-")


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_the_bytes_of_a_hash(tree: Path, algorithm: str) -> None:
    assert folder_content_hash(tree, algorithm) == hashlib.new(algorithm, b"".join(PARTS)).hexdigest()


@pytest.mark.parametrize(
    ("skip", "without"),
    [(("b/deep/",), (3, 4)), (("b.bin", "a"), (0, 2)), (("b/deep",), (3,)), (("b/empty/",), (5,)), (("deep/",), ())],
)
def test_skipped_paths(tree: Path, skip: tuple[str, ...], without: tuple[int, ...]) -> None:
    parts = (part for number, part in enumerate(PARTS) if number not in without)
    assert folder_content_hash(tree, "sha256", skip) == hashlib.sha256(b"".join(parts)).hexdigest()


def test_a_backslash_counts_as_a_slash(tmp_path: Path) -> None:
    (tmp_path / "a\\x2db.mount").write_bytes(b"1")  # as systemd names its files
    (tmp_path / "link").symlink_to("a\\x2db.mount")
    parts = b"a/x2db.mountF1-linkLa/x2db.mount-"
    assert folder_content_hash(tmp_path, "sha256") == hashlib.sha256(parts).hexdigest()


def test_text_longer_than_a_part_is_whole(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes("é\r\n".encode() * 800_000)
    expected = hashlib.sha256(b"longF" + "é\n".encode() * 800_000 + b"-").hexdigest()
    assert folder_content_hash(tmp_path, "sha256") == expected


def test_a_pipe_has_no_hash(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BuildFailed, match="'pipe' is not a file"):
        folder_content_hash(tmp_path, "sha256")
