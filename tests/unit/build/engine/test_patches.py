"""Patches and folders of sources do not lead out of the work folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import RecipeFault
from kiln.build.engine import source_plan
from kiln.build.engine.patches import require_safe_patches
from kiln.recipe.rendered import Source

if TYPE_CHECKING:
    from pathlib import Path

HUNK = "@@ -0,0 +1 @@\n+x\n"
LINK = "diff --git a/z b/z\nnew file mode 120000\n--- /dev/null\n+++ b/z\n@@ -0,0 +1 @@\n+/victim\n"


@pytest.mark.parametrize(
    "text",
    [
        f"--- a/ok\n+++ b/../../../evil\n{HUNK}",
        f"--- /dev/null\n+++ /victim/evil\n{HUNK}",
        f"--- ../../evil\n+++ ../../evil\n{HUNK}",
        f"--- a/ok\n+++ b/..\n{HUNK}",
        f'--- a/ok\n+++ "b/../\\145vil"\n{HUNK}',
        f'--- a/ok\n+++ "b/\\056\\056/evil"\n{HUNK}',
        f"  --- a/ok\n  +++ b/../evil\t2026-01-01\n  {HUNK}",
        f"--- a/ok\r\n+++ b/../evil\r\n{HUNK}",
        f"--- a/ok\n+++ b\\..\\..\\evil\n{HUNK}",
        "diff --git a/ok b/../../evil\nsimilarity index 100%\nrename from ok\nrename to ../../evil\n",
        "diff --git a/ok b/ok\nrename from ok\nrename to /victim/evil\n",
        "diff --git a/ok b/ok\ncopy from /etc/passwd\ncopy to b\n",
        "diff --git a/../evil b/../evil\nnew file mode 100644\n",
        f"Index: ../evil\n{HUNK}",
        "*** ../evil\n--- b/ok\n***************\n*** 1 ****\n! a\n--- 1 ----\n! b\n",
        f"--- a/ok\n+++ b/ok\n{HUNK}--- a/ok\n+++ b/../evil\n{HUNK}",
        f"--- a/ok\n+++ b/ok\n@@ -1,9 +1,9 @@\n x\ndiff --git a/ok b/ok\n--- a/ok\n+++ b/../evil\n{HUNK}",
        f"{LINK}diff --git a/z/evil b/z/evil\nnew file mode 100644\n--- /dev/null\n+++ b/z/evil\n{HUNK}",
    ],
)
def test_a_patch_that_leads_out_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.patch").write_bytes(text.encode())
    if text.startswith("diff --git a/z"):
        (tmp_path / "q.patch").write_bytes(text.partition("diff --git a/z/evil")[0].encode())
        require_safe_patches([tmp_path / "q.patch"])
    with pytest.raises(RecipeFault, match=r"the patch p\.patch"):
        require_safe_patches([tmp_path / "p.patch"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"--- /dev/null\n+++ b/new\n{HUNK}",
        f"--- a/x..y\n+++ b/..x/...\n{HUNK}",
        "--- a/ok\n+++ b/ok\n@@ -1,2 +1,2 @@\n--- ../a comment of SQL\n+++ /etc/a\n x\n",
        "From: a\nSubject: use /usr/lib\n\n---\n\ndiff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-/x\n+../y\n",
        "*** a/ok\n--- b/ok\n***************\n*** 1,2 ****\n! ../a\n  b\n--- 1,2 ----\n! /c\n  b\n",
    ],
)
def test_other_patches_are_taken(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.patch").write_text(text)
    require_safe_patches([tmp_path / "p.patch", tmp_path / "missing.patch"])


@pytest.mark.parametrize("folder", ["..", "../x", "/abs", "a/../../x", "a/..", "\\x", "a\0b"])
def test_a_folder_that_leads_out_is_refused(folder: str) -> None:
    with pytest.raises(RecipeFault, match="the folder of a source"):
        Source(url=("https://a.example/a.zip",), folder=folder)
    with pytest.raises(RecipeFault, match="the file name of a source"):
        Source(url=("https://a.example/a.zip",), file_name=folder)


@pytest.mark.parametrize("folder", [None, "", ".", "a", "a/b", "..a", "a..", "./a"])
def test_a_folder_inside_is_taken(folder: str | None) -> None:
    Source(url=("https://a.example/a.zip",), folder=folder)


@pytest.mark.parametrize(
    ("source", "by_kiln"),
    [
        (Source(url=("https://a.example/a.7z",)), True),
        (Source(url=("https://a.example/a.7z",), by_engine=True), True),
        (Source(url=("https://a.example/A.7Z",), by_engine=True), True),
        (Source(path="src/a.7z", by_engine=True), True),
        (Source(url=("https://a.example/a.7z",), by_engine=True, file_name="a.bin"), False),
        (Source(url=("https://a.example/a.tar.gz",), by_engine=True), False),
        (Source(path="src", by_engine=True), False),
    ],
)
def test_the_engine_unpacks_no_7z(source: Source, by_kiln: bool) -> None:
    assert source_plan.is_unpacked_by_kiln(source) is by_kiln
