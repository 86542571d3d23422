"""Which paths and links stay inside of a prefix."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.admission import Tree, resolved

NAMES = st.sampled_from(["a", "b", "c"])
AIMS = st.lists(st.sampled_from(["..", ".", "a", "b", "c"]), min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("path", "lies"),
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
def test_where_a_path_lies(path: str, lies: str | None) -> None:
    links = {"top": "a/..", "deep/link": "../a", "loop": "pool", "pool": "loop", "away": "/etc"}
    assert resolved(path, links) == lies


@given(aims=st.dictionaries(NAMES, AIMS, max_size=3), path=AIMS)
def test_the_kernel_is_of_the_same_opinion(aims: dict[str, str], path: str) -> None:
    """Where it finds something at all, it is where we say, and it is inside exactly when we say so."""
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
        lies = resolved(path, aims)
        if lies is not None:
            assert there == os.path.normpath(prefix / lies)
        else:
            assert _ever_above(prefix, path, aims)


def _ever_above(prefix: Path, path: str, aims: dict[str, str]) -> bool:
    """Whether following a path leads above the prefix at some point, asked of the kernel step by step."""
    at = prefix
    for part in path.split("/"):
        at = Path(os.path.realpath(at / part))
        if at == prefix.parent or at in prefix.parents:
            return True
    return any(".." in aim for aim in aims.values())


def test_what_is_behind_a_link_lies_where_that_leads() -> None:
    tree = Tree()
    assert tree.escapes(["share/x"], {"a/b/top": "../.."}) == []
    assert tree.escapes(["a/b/top/share/y"], {}) == [], "that is share/y"
    assert "a/b/top/out -> .." in tree.escapes([], {"a/b/top/out": ".."})


def test_what_one_package_has_as_a_folder_another_cannot_have_as_a_link() -> None:
    tree = Tree()
    assert tree.escapes(["lib/x"], {}) == []
    assert tree.escapes([], {"lib": "share"}) == ["lib, a folder elsewhere"]


def test_links_that_lead_out_may_be_carried_where_that_is_said_but_nothing_lies_behind_them() -> None:
    tree = Tree(carried=True)
    assert tree.escapes([], {"away": "/etc"}) == []
    assert tree.escapes(["away/x"], {}) == ["away/..."]


def test_a_link_that_somebody_has_made_in_the_prefix_is_theirs() -> None:
    tree = Tree()
    tree.hold(["share/x"], {"mine": "/home/me"})
    assert tree.escapes(["share/y"], {"lib64": "lib"}) == []
