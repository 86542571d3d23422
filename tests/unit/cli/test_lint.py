from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import FeedstockNotFound, LintFailed, UnsafeTemplate
from kiln.cli.main import make_pasteable, run
from tests.unit.feedstock.lint.recipes import META, RECIPE, changed, feedstock

if TYPE_CHECKING:
    from pathlib import Path

BROKEN = changed(changed(META, "zlib >=1.2,<2", "zlib>=1.2,<2"), "{{ name }}-", "{{name}}-")


@pytest.fixture(autouse=True)
def no_shellcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


def test_lints_end_with_their_own_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock(tmp_path, BROKEN)
    assert run(["-C", str(tmp_path), "lint"]) == LintFailed.exit_code
    out, err = capsys.readouterr()
    assert "recipe/meta.yaml:21:7: lint R-022: requirements/host: 'zlib>=1.2,<2' has no space after the name\n" in out
    assert "  try: write zlib >=1.2,<2\n" in out
    assert out.endswith("1 lint, 2 hints\n")
    assert make_pasteable("kiln lint --fix", tmp_path) in err


def test_hints_alone_succeed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock(tmp_path, changed(META, "{{ name }}-", "{{name}}-"))
    assert run(["-C", str(tmp_path), "lint"]) == 0
    assert capsys.readouterr().out.endswith("0 lints, 1 hint\n")


def test_json_has_lints_and_hints_with_their_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock(tmp_path, BROKEN)
    run(["-C", str(tmp_path), "lint", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert [entry["id"] for entry in answer["lints"]] == ["R-022"]
    assert [entry["id"] for entry in answer["hints"]] == ["R-025", "R-048"]
    assert answer["fixed"] == []
    assert answer["hints"][0] == {
        "id": "R-025",
        "message": "write {{ name }}, with single spaces",
        "file": "recipe/meta.yaml",
        "line": 9,
        "column": 28,
        "cure": "put one space inside each brace",
        "fixable": True,
    }


def test_fix_writes_the_recipe_and_keeps_its_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subject = feedstock(tmp_path, BROKEN)
    subject.meta.chmod(0o640)
    assert run(["-C", str(tmp_path), "lint", "--fix", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["lints"], answer["hints"]) == ([], [])
    assert [entry["id"] for entry in answer["fixed"]] == ["R-022", "R-025", "R-048"]
    assert subject.meta.read_text() == META
    assert subject.meta.stat().st_mode & 0o777 == 0o640


def test_fix_leaves_a_clean_recipe_untouched(tmp_path: Path) -> None:
    subject = feedstock(tmp_path, RECIPE)
    before = subject.recipe_v1.stat()
    assert run(["-C", str(tmp_path), "lint", "--fix"]) == 0
    assert (subject.recipe_v1.stat().st_ino, subject.recipe_v1.stat().st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )


def test_fix_keeps_a_byte_order_mark(tmp_path: Path) -> None:
    subject = feedstock(tmp_path, "\ufeff" + BROKEN)
    run(["-C", str(tmp_path), "lint", "--fix"])
    assert subject.meta.read_bytes() == b"\xef\xbb\xbf" + META.encode()


def test_fix_does_not_write_through_a_link(tmp_path: Path) -> None:
    subject = feedstock(tmp_path / "a", META)
    outside = tmp_path / "meta.yaml"
    outside.write_text(BROKEN)
    subject.meta.unlink()
    subject.meta.symlink_to(outside)
    assert run(["-C", str(tmp_path / "a"), "lint", "--fix"]) != 0
    assert outside.read_text() == BROKEN


@pytest.mark.processes
@pytest.mark.usefixtures("limited_process")
def test_a_recipe_that_exhausts_the_machine_is_refused(tmp_path: Path) -> None:
    feedstock(tmp_path, changed(META, "{{ version }}.tar", "{{ 'a' * 10 ** 10 }}.tar"))
    assert run(["-C", str(tmp_path), "lint"]) == UnsafeTemplate.exit_code


def test_a_folder_without_a_recipe_is_no_feedstock(tmp_path: Path) -> None:
    assert run(["-C", str(tmp_path), "lint"]) == FeedstockNotFound.exit_code
