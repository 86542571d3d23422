"""Which paths and links stay inside of a prefix."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.base import files
from kiln.conda.safety import PrefixTree, resolve_links

NAMES = st.sampled_from(["a", "b", "c"])
AIMS = st.lists(st.sampled_from(["..", ".", "a", "b", "c"]), min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("a/b", "a/b"),
        ("./a//b/", "a/b"),
        ("a/..", ""),
        ("a/../..", None),
        ("/a", None),
        ("..", None),
        ("top/lib/x", "lib/x"),
        ("top/../x", None),
        ("deep/link/x", "a/x"),
        ("loop/x", None),
        ("away/x", None),
    ],
)
def test_a_path_is_resolved_through_links(path: str, real: str | None) -> None:
    links = {"top": "a/..", "deep/link": "../a", "loop": "pool", "pool": "loop", "away": "/etc"}
    assert resolve_links(path, links) == real


@given(aims=st.dictionaries(NAMES, AIMS, max_size=3), path=AIMS)
def test_the_kernel_is_of_the_same_opinion(aims: dict[str, str], path: str) -> None:
    """If a path exists, the kernel resolves it to the same place, inside the prefix exactly when the check says so."""
    with tempfile.TemporaryDirectory() as place:
        prefix = Path(place).resolve() / "over" / "prefix"
        for name in ("a", "b", "c"):
            (prefix / name).parent.mkdir(parents=True, exist_ok=True)
            if name not in aims:
                (prefix / name / "a").mkdir(parents=True)
        for name, aim in aims.items():
            (prefix / name).symlink_to(aim)
        try:
            there = os.path.realpath(prefix / path, strict=True)
        except OSError:
            return  # nothing is there, or links go round: then nothing can be written either
        lies = resolve_links(path, aims)
        if lies is not None:
            assert there == os.path.normpath(prefix / lies)
        else:
            assert _ever_above(prefix, path, aims)


def _ever_above(prefix: Path, path: str, aims: dict[str, str]) -> bool:
    """Return whether following a path step by step leads above the prefix, according to the kernel."""
    at = prefix
    for part in path.split("/"):
        at = Path(os.path.realpath(at / part))
        if at == prefix.parent or at in prefix.parents:
            return True
    return any(".." in aim for aim in aims.values())


def test_a_file_behind_a_link_is_where_the_link_leads() -> None:
    tree = PrefixTree()
    assert tree.add_and_check_package(["share/x"], {"a/b/top": "../.."}) == []
    assert tree.add_and_check_package(["a/b/top/share/y"], {}) == [], "that is share/y"
    assert "a/b/top/out -> .." in tree.add_and_check_package([], {"a/b/top/out": ".."})


def test_a_folder_of_one_package_cannot_be_a_link_of_another() -> None:
    tree = PrefixTree()
    assert tree.add_and_check_package(["lib/x"], {}) == []
    assert tree.add_and_check_package([], {"lib": "share"}) == ["lib, a folder elsewhere"]


def test_carried_links_may_lead_out_but_no_file_is_behind_them() -> None:
    tree = PrefixTree(carried=True)
    assert tree.add_and_check_package([], {"away": "/etc"}) == []
    assert tree.add_and_check_package(["away/x"], {}) == ["away/..."]


def test_an_existing_outward_link_is_not_reported() -> None:
    tree = PrefixTree()
    tree.add_installed_paths(["share/x"], {"mine": "/home/me"})
    assert tree.add_and_check_package(["share/y"], {"lib64": "lib"}) == []


@pytest.mark.parametrize("path", ["history", "state", "pinned", "frozen", "app-1-0.json", "initial-state.explicit.txt"])
@pytest.mark.parametrize("folder", ["conda-meta", "./conda-meta", "conda-meta/", "CONDA-META"])
def test_no_package_has_a_say_in_the_records_of_a_prefix(folder: str, path: str) -> None:
    assert PrefixTree().add_and_check_package([f"{folder}/{path}"], {}) == [f"{folder}/{path}"]
    assert PrefixTree().add_and_check_package([f"share/{folder}/{path}"], {}) == []


def test_paths_of_one_file_are_reported() -> None:
    assert PrefixTree().add_and_check_package(["share/x", "share/y", "./share//x"], {}) == ["./share//x, twice"]
    assert PrefixTree().add_and_check_package(["share/x", "share/X"], {}) == []
    assert PrefixTree(folds_case=True).add_and_check_package(["share/x", "share/X"], {}) == ["share/X, twice"]


def test_a_repeated_path_is_reported_once() -> None:
    assert PrefixTree().add_and_check_package(["share/x"] * 10_000, {}) == ["share/x, twice"]


def test_a_file_system_that_minds_the_case_of_names_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "Folder"
    folder.mkdir()
    (tmp_path / "fOLDER").mkdir()
    assert not files.is_case_insensitive(folder)
    assert not files.is_case_insensitive(folder / "not there")
