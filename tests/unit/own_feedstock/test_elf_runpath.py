from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.own_feedstock.conftest import shared_object

if TYPE_CHECKING:
    from pathlib import Path


def runpath_of(scripts: Any, path: Path) -> str | None:
    with path.open("rb") as file:
        result = scripts.elf_runpath.read(file)
    return result and str(result.text)


def test_a_search_path_is_read(scripts: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.so"
    path.write_bytes(shared_object("$ORIGIN/../lib"))
    assert runpath_of(scripts, path) == "$ORIGIN/../lib"


def test_a_long_search_path_is_read_whole(scripts: Any, tmp_path: Path) -> None:
    path, text = tmp_path / "a.so", ":".join(f"$ORIGIN/{number}" for number in range(2000))
    path.write_bytes(shared_object(text))
    assert runpath_of(scripts, path) == text


def test_a_shorter_path_is_written_in_place_and_the_strings_behind_it_stay(scripts: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.so"
    before = shared_object("$ORIGIN/../lib", tail=b"a_symbol\0")
    path.write_bytes(before)
    assert scripts.elf_runpath.rewrite(path, lambda _: "$ORIGIN")
    assert runpath_of(scripts, path) == "$ORIGIN"
    after = path.read_bytes()
    assert len(after) == len(before)
    assert [index for index in range(len(after)) if after[index] != before[index]] == [before.index(b"/../lib")]


def test_an_unchanged_path_leaves_the_file_alone(scripts: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.so"
    path.write_bytes(shared_object("$ORIGIN"))
    os.utime(path, (1, 1))
    assert not scripts.elf_runpath.rewrite(path, lambda old: old)
    assert path.stat().st_mtime == 1


def test_an_object_without_a_search_path_stays_without(scripts: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.so"
    path.write_bytes(shared_object(None))
    assert not scripts.elf_runpath.rewrite(path, lambda _: "$ORIGIN")
    assert runpath_of(scripts, path) is None


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x01\x01" + bytes(64), b"#!/bin/sh\n"])
def test_a_file_that_is_not_a_shared_object_is_refused(scripts: Any, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.so"
    path.write_bytes(content)
    with pytest.raises(scripts.elf_runpath.NotElf):
        runpath_of(scripts, path)


@pytest.mark.processes
def test_a_longer_path_is_left_to_patchelf(scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, path = tmp_path / "patchelf", tmp_path / "a.so"
    tool.write_text('#!/bin/sh\necho "$@" >"$0.called"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    path.write_bytes(shared_object("$ORIGIN"))
    assert scripts.elf_runpath.rewrite(path, lambda old: f"{old}:$ORIGIN/../lib")
    assert (tmp_path / "patchelf.called").read_text() == f"--set-rpath $ORIGIN:$ORIGIN/../lib {path}\n"
