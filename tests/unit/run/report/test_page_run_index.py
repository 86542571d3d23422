"""The index of runs links the pages in its folder, and trusts nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kiln.run.report.page import run_index_html
from kiln.state.results import ConfigState
from tests import runs
from tests.unit.run.report.test_page import EVIL, Elements

if TYPE_CHECKING:
    from pathlib import Path

RUN = runs.worked_through(("a", "b"))


def test_each_run_has_its_verdict_and_a_link_if_its_page_exists(tmp_path: Path) -> None:
    (tmp_path / "0007.html").write_text("a page\n")
    failed = replace(runs.worked_through(("a", "b"), bad={0: ConfigState.FAILED}), run=6, rehearsal=True)
    page = run_index_html([RUN, failed], name="x", folder=tmp_path, omitted=3)
    elements = Elements(page)
    links = [attributes["href"] for tag, attributes in elements.found if tag == "a"]
    assert links == ["./0007.html"]
    assert elements.text.index("2 of 2 built") < elements.text.index("1 of 2 failed")
    assert "rehearsal" in elements.text
    assert "3 earlier runs" in elements.text


def test_a_run_in_progress_has_its_time_so_far(tmp_path: Path) -> None:
    run = runs.worked_through(("a", "b"), until=600.0)
    page = run_index_html([run], name="x", folder=tmp_path, now=runs.BEGAN + 600)
    assert "running: 0 of 2 built" in page
    assert "10 min 00 s" in page
    assert "earlier runs" not in page


def test_nothing_of_a_run_becomes_part_of_the_index(tmp_path: Path) -> None:
    run = replace(RUN, command=EVIL, commit=EVIL, remote_url=EVIL)
    page = run_index_html([run], name=EVIL, folder=tmp_path)
    elements = Elements(page)
    assert not {"script", "img", "iframe", "base", "form", "a"} & {tag for tag, _ in elements.found}
    assert not any(name.startswith("on") or name == "style" for _, attributes in elements.found for name in attributes)
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "default-src 'none'" in page
