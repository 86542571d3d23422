"""``kiln bump`` writes the values of a recipe, all or none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import DownloadFailed, NotWritable, UsageError
from kiln.cli import main
from kiln.cli.main import make_pasteable
from kiln.feedstock.bump import bump
from tests.bumping import OLD, bumped, feedstock, released

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock


def text(up: Path) -> str:
    """Return a recipe with one source in a folder."""
    return (
        '{% set version = "1.0" %}\npackage:\n  name: a\n  version: {{ version }}\nsource:\n'
        f"  url: {up.as_uri()}/a-{{{{ version }}}}.tar\n  sha256: {OLD}\nbuild:\n  number: 3\n"
    )


@pytest.fixture
def case(tmp_path: Path) -> Feedstock:
    return feedstock(tmp_path / "f", text(tmp_path / "up"))


def kiln(case: Feedstock, *arguments: str) -> int:
    return main.dispatch(["-C", str(case.root), "bump", *arguments])


def test_a_version_is_written_with_what_follows_from_it(
    case: Feedstock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = released(tmp_path / "up", "a-2.0.tar")["a-2.0.tar"]
    before = case.meta.read_text()
    case.meta.chmod(0o640)
    assert kiln(case, "2.0") == 0
    expected = before.replace('"1.0"', '"2.0"').replace(OLD, new).replace("number: 3", "number: 0")
    assert case.meta.read_text() == expected
    assert case.meta.stat().st_mode & 0o777 == 0o640
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "recipe/meta.yaml: version 1.0 -> 2.0, build number 3 -> 0",
        "  line 1, version: 1.0 -> 2.0",
        f"  line 7, sha256: {OLD[:16]}... -> {new[:16]}...",
        "  line 9, number: 3 -> 0",
        make_pasteable("next: kiln rerender, git commit, then kiln build --changed --since HEAD~1", case.root),
    ]
    assert "a-2.0.tar" in printed.err


def test_a_build_number_is_incremented_without_a_download(case: Feedstock, capsys: pytest.CaptureFixture[str]) -> None:
    before = case.meta.read_text()
    assert kiln(case, "--build", "--json") == 0
    assert case.meta.read_text() == before.replace("number: 3", "number: 4")
    printed = json.loads(capsys.readouterr().out)
    assert printed["build_numbers"] == {"old": [3], "new": [4]}
    assert printed["changes"] == [{"line": 9, "column": 11, "key": "number", "old": "3", "new": "4"}]
    assert printed["written"]


def test_a_dry_run_shows_a_difference_and_writes_nothing(
    case: Feedstock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = released(tmp_path / "up", "a-2.0.tar")["a-2.0.tar"]
    before = case.meta.read_bytes()
    assert kiln(case, "2.0", "--dry-run") == 0
    assert case.meta.read_bytes() == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["--- a/recipe/meta.yaml", "+++ b/recipe/meta.yaml"]
    assert f"+  sha256: {new}" in lines
    assert kiln(case, "2.0", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["written"] is False


def test_nothing_is_written_when_a_source_cannot_be_downloaded(case: Feedstock) -> None:
    before = case.meta.read_bytes()
    with pytest.raises(DownloadFailed, match=r"a-2\.0\.tar cannot be downloaded\n  why: no such file"):
        kiln(case, "2.0")
    assert case.meta.read_bytes() == before


def test_the_rendering_of_the_same_process_stays_that_of_the_file(case: Feedstock, tmp_path: Path) -> None:
    from kiln.recipe.feedstock import BuildConfig
    from kiln.recipe.render import render

    released(tmp_path / "up", "a-2.0.tar")
    config = BuildConfig(name="c", platform="linux-64", variant={}, pin_run_as_build={})
    assert render(case, config).outputs[0].version == "1.0"
    plan = bumped(case, "2.0")
    assert render(case, config).outputs[0].version == "1.0"
    bump.write_recipe(case, plan)
    assert render(case, config).outputs[0].version == "2.0"


def test_hashes_alone_are_written(case: Feedstock, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = released(tmp_path / "up", "a-1.0.tar")["a-1.0.tar"]
    before = case.meta.read_text()
    assert kiln(case, "--hashes") == 0
    assert case.meta.read_text() == before.replace(OLD, new)
    assert capsys.readouterr().out.splitlines() == [
        "recipe/meta.yaml: version 1.0, build number 3",
        f"  line 7, sha256: {OLD[:16]}... -> {new[:16]}...",
        make_pasteable("next: git commit, then kiln build --changed --since HEAD~1", case.root),
    ]
    assert kiln(case, "--hashes") == 0
    assert capsys.readouterr().out.splitlines()[1] == "  the hashes are those of the sources"


def test_a_byte_order_mark_and_line_endings_stay(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + text(tmp_path / "up").replace("\n", "\r\n").encode()
    case = feedstock(tmp_path / "f", "")
    case.meta.write_bytes(data)
    assert kiln(case, "--build") == 0
    assert case.meta.read_bytes() == data.replace(b"number: 3", b"number: 4")


def test_a_recipe_that_is_a_link_or_was_changed_is_not_written(case: Feedstock, tmp_path: Path) -> None:
    plan = bump.prepare_build_bump(case)
    case.meta.write_text(f"# edited\n{case.meta.read_text()}")
    with pytest.raises(NotWritable, match="was changed meanwhile"):
        bump.write_recipe(case, plan)
    elsewhere = case.meta.rename(tmp_path / "elsewhere.yaml")
    case.meta.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    with pytest.raises(NotWritable, match="nothing is written through links"):
        kiln(case, "--build")
    assert elsewhere.read_bytes() == before


@pytest.mark.parametrize("arguments", [(), ("2.0", "--build"), ("--build", "--check"), ("--check", "--dry-run")])
def test_one_thing_is_done_at_a_time(case: Feedstock, arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"takes one of|exclude each other"):
        kiln(case, *arguments)


def test_a_check_says_what_no_index_tells(case: Feedstock, capsys: pytest.CaptureFixture[str]) -> None:
    assert kiln(case, "--check") == 0
    assert capsys.readouterr().out.splitlines()[::2] == [
        "the recipe has version 1.0",
        "  unknown: it has no release that is named as the recipe's",
    ]
    assert kiln(case, "--check", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["sources"]
    assert (row["newest"], row["newer"]) == (None, False)
