"""``kiln cache``: what the caches take, and which of them go."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from kiln.cli.main import run
from kiln.state.store.layout import ArtifactLayout
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A feedstock with three caches: two for CUDA 12.9, of which ``b`` is the older, and one without CUDA."""
    feedstock = builders.feedstock(tmp_path, "package:\n  name: a\n  version: 1\n")
    caches = ArtifactLayout.for_feedstock(feedstock).compile_caches
    for age, (key, label) in enumerate((("a", "cuda12.9, x:1"), ("b", "cuda12.9, x:1"), ("c", "cpu, x:1"))):
        with caches.locked_folder(key, label) as folder:
            (folder / "blob").write_bytes(os.urandom(MB))
        os.utime(caches.root / f"{key}.json", (9000 - age, 9000 - age))
    return feedstock.root


def left(root: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[str], int]:
    """The keys that are left, and the whole megabytes that were freed."""
    assert run(["-C", str(root), "cache", "--json", *words]) == 0
    told = json.loads(capsys.readouterr().out)
    return [entry["key"] for entry in told["caches"]], told["freed"] // MB


def test_the_caches_are_told_with_their_size(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-C", str(root), "cache"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[2:5]] == ["a", "b", "c"]
    assert shown[-1].startswith("3.")
    assert shown[-1].endswith(f" MB in {root / 'build_artifacts' / 'compile-cache'}")


def test_of_each_kind_the_one_used_last_is_kept(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert left(root, capsys, "--clean") == (["a", "c"], 1)
    assert left(root, capsys) == (["a", "c"], 0)


def test_what_was_used_longest_ago_goes_first(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert left(root, capsys, "--to", "2.5MB") == (["a", "b"], 1)


def test_all_go_when_asked_for(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert left(root, capsys, "--all") == ([], 3)
    assert run(["-C", str(root), "cache"]) == 0
    assert capsys.readouterr().out.startswith("0 B in ")


def test_a_size_that_is_none_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-C", str(root), "cache", "--to", "a lot"]) == 2
    assert "invalid size" in capsys.readouterr().err
