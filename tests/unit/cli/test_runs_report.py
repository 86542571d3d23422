"""``kiln report`` writes a recorded run, and names what there is when asked for another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import NotWritable, UsageError
from kiln.cli import main
from kiln.cli import runs as cli_runs
from kiln.state.ledger.ledger import Ledger
from tests import runs

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = "linux_64_python3.11.____cpython"


@pytest.fixture
def feedstock(tmp_path: Path) -> Path:
    """A feedstock with one config and two recorded runs."""
    root = tmp_path / "some-feedstock"
    (root / "recipe").mkdir(parents=True)
    (root / "recipe" / "meta.yaml").write_text("package: {name: some}\n")
    (root / ".ci_support").mkdir()
    (root / ".ci_support" / f"{CONFIG}.yaml").write_text("python:\n- 3.11.* *_cpython\ntarget_platform:\n- linux-64\n")
    with Ledger(root / "build_artifacts" / "ledger.sqlite") as ledger:
        for jobs in (1, 2):
            ledger.end_run(ledger.begin_run(runs.worked_through([CONFIG], jobs=jobs)))
    return root


def kiln(root: Path, *arguments: str) -> int:
    return main.dispatch(["-C", str(root), "report", *arguments])


def test_the_latest_run_is_written_beside_the_packages(feedstock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kiln(feedstock) == 0
    page = feedstock / "build_artifacts" / "reports" / "0002.html"
    table = capsys.readouterr().out.splitlines()
    assert table[2].startswith("Python 3.11")
    assert table[-1] == f"page: {page}"
    assert "some-feedstock" in page.read_text()
    assert "Python 3.11" in page.read_text()


def test_a_run_can_be_named_and_the_page_put_elsewhere(feedstock: Path, tmp_path: Path) -> None:
    assert kiln(feedstock, "1", "--out", str(tmp_path / "page.html")) == 0
    assert "run 1" in (tmp_path / "page.html").read_text()
    assert not (feedstock / "build_artifacts" / "reports").exists()


def test_json_alone_writes_no_page(feedstock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kiln(feedstock, "--json") == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 2
    assert not (feedstock / "build_artifacts" / "reports").exists()


def test_a_config_whose_file_is_gone_keeps_its_name(feedstock: Path) -> None:
    (feedstock / ".ci_support" / f"{CONFIG}.yaml").unlink()
    assert kiln(feedstock) == 0
    assert CONFIG in (feedstock / "build_artifacts" / "reports" / "0002.html").read_text()


def test_a_run_that_is_not_there_is_told_with_those_that_are(feedstock: Path) -> None:
    with pytest.raises(UsageError, match="run 9 not found\n  try: the latest is 2, the first 1"):
        kiln(feedstock, "9")


def test_where_nothing_was_run_nothing_is_begun(feedstock: Path) -> None:
    ledger = feedstock / "build_artifacts" / "ledger.sqlite"
    ledger.unlink()
    with pytest.raises(UsageError, match="no run is recorded"):
        kiln(feedstock)
    assert not ledger.exists()


def test_a_recorded_run_is_written_for_a_ci(feedstock: Path, tmp_path: Path) -> None:
    assert kiln(feedstock, "1", "--junit", str(tmp_path / "out" / "junit.xml")) == 0
    text = (tmp_path / "out" / "junit.xml").read_text()
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="kiln run 1"')
    assert f'<testsuite name="{CONFIG}"' in text
    assert not (feedstock / "build_artifacts" / "reports").exists()


def test_the_page_is_compared_with_the_run_before_and_listed_in_an_index(feedstock: Path) -> None:
    pages = feedstock / "build_artifacts" / "reports"
    assert kiln(feedstock, "1") == 0
    assert 'href="./0002.html"' not in (pages / "index.html").read_text()
    assert kiln(feedstock) == 0
    index = (pages / "index.html").read_text()
    assert index.index('href="./0002.html"') < index.index('href="./0001.html"')
    assert 'Compared with run <a href="./0001.html">1</a>' in (pages / "0002.html").read_text()
    assert 'href="./index.html"' in (pages / "0002.html").read_text()


def test_a_page_elsewhere_has_no_index(feedstock: Path, tmp_path: Path) -> None:
    assert kiln(feedstock, "--out", str(tmp_path / "page.html")) == 0
    assert "index.html" not in (tmp_path / "page.html").read_text()
    assert not (tmp_path / "index.html").exists()


def test_no_page_is_written_through_a_link(feedstock: Path, tmp_path: Path) -> None:
    pages = feedstock / "build_artifacts" / "reports"
    pages.mkdir()
    target = tmp_path / "target"
    target.write_text("mine\n")
    (pages / "index.html").symlink_to(target)
    with pytest.raises(NotWritable, match=r"index\.html is a link"):
        kiln(feedstock)
    assert target.read_text() == "mine\n"


def test_a_run_older_than_the_index_has_a_page(feedstock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_runs, "INDEXED", 1)
    assert kiln(feedstock, "1") == 0
    pages = feedstock / "build_artifacts" / "reports"
    assert "run 1" in (pages / "0001.html").read_text()
    index = (pages / "index.html").read_text()
    assert "run 2" in index
    assert "1 earlier run:" in index
