"""``kiln runs`` lists what the ledger has recorded."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import NotWritable, UnknownConfig, UsageError
from kiln.cli import main
from kiln.cli import runs as cli_runs
from kiln.cli.main import make_pasteable, run
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import ConfigState
from kiln.state.store.layout import ArtifactLayout
from tests import builders, runs

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A feedstock with a succeeded run, a failed one, and one whose process was killed."""
    feedstock = builders.feedstock(tmp_path / "f", "package:\n  name: a\n  version: '1'\n")
    good = runs.worked_through(["a", "b"])
    bad = runs.worked_through(["a", "b"], bad={1: ConfigState.FAILED})
    with Ledger(feedstock.artifacts / "ledger.sqlite") as ledger:
        ledger.end_run(ledger.begin_run(dataclasses.replace(good, commit=COMMIT)))
        ledger.end_run(ledger.begin_run(dataclasses.replace(bad, rehearsal=True)))
        killed = ledger.begin_run(runs.worked_through(["a", "b"], until=10.0))
        with ledger._write_transaction() as connection:
            connection.execute("UPDATE run SET owner = 'gone' WHERE id = ?", (killed,))
    return feedstock.root


def kiln(root: Path, *arguments: str) -> int:
    return main.dispatch(["-C", str(root), "runs", *arguments])


def test_runs_are_listed_with_commit_and_verdict_the_latest_first(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kiln(root) == 0
    header, _, killed, failed, good = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "started", "commit", "kind", "verdict", "took", "configs"]
    assert good.split()[0] == "1"
    assert good.split()[3:6] == ["01234567", "build", "succeeded"]
    assert good.endswith("2 done")
    assert failed.split()[3:5] == ["rehearsal", "failed"]
    assert failed.endswith("1 failed, 1 done")
    assert killed.split()[3:5] == ["build", "interrupted"]


def test_json_has_each_run_with_its_configs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kiln(root, "--json", "--last", "2") == 0
    killed, failed = json.loads(capsys.readouterr().out)
    assert (killed["run"], killed["verdict"], killed["commit"]) == (3, "interrupted", "")
    assert failed["configs"] == {"a": "done", "b": "failed"}
    assert failed["seconds"] > 0


def test_earlier_runs_are_counted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kiln(root, "--last", "1") == 0
    assert capsys.readouterr().out.splitlines()[-1] == make_pasteable("2 earlier runs: kiln runs --all", root)
    assert kiln(root, "--last", "1", "--all") == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_a_feedstock_without_runs_gets_no_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = builders.feedstock(tmp_path / "f", "package:\n  name: a\n  version: '1'\n")
    assert kiln(feedstock.root) == 0
    assert capsys.readouterr().out.startswith("no run is recorded yet")
    assert kiln(feedstock.root, "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert not feedstock.artifacts.exists()


def test_a_number_below_one_is_refused(root: Path) -> None:
    with pytest.raises(UsageError, match="--last is 0"):
        kiln(root, "--last", "0")


MB = 1 << 20


@pytest.fixture
def cache_root(tmp_path: Path) -> Path:
    """A feedstock with three caches: two for CUDA 12.9, of which ``b`` is the older, and one without CUDA."""
    feedstock = builders.feedstock(tmp_path, "package:\n  name: a\n  version: 1\n")
    caches = ArtifactLayout.for_feedstock(feedstock).compile_caches
    for age, (key, label) in enumerate((("a", "cuda12.9, x:1"), ("b", "cuda12.9, x:1"), ("c", "cpu, x:1"))):
        with caches.locked_folder(key, label) as folder:
            (folder / "blob").write_bytes(os.urandom(MB))
        os.utime(caches.root / f"{key}.json", (9000 - age, 9000 - age))
    return feedstock.root


def left(cache_root: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[str], int]:
    """The keys that are left, and the whole megabytes that were freed."""
    assert run(["-C", str(cache_root), "cache", "--json", *words]) == 0
    told = json.loads(capsys.readouterr().out)
    return [entry["key"] for entry in told["caches"]], told["freed"] // MB


def test_the_caches_are_told_with_their_size(cache_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-C", str(cache_root), "cache"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[2:5]] == ["a", "b", "c"]
    assert shown[-1].startswith("3.")
    assert shown[-1].endswith(f" MB in {cache_root / 'build_artifacts' / 'compile-cache'}")


def test_of_each_kind_the_one_used_last_is_kept(cache_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert left(cache_root, capsys, "--clean") == (["a", "c"], 1)
    assert left(cache_root, capsys) == (["a", "c"], 0)


def test_what_was_used_longest_ago_goes_first(cache_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert left(cache_root, capsys, "--to", "2.5MB") == (["a", "b"], 1)


def test_all_go_when_asked_for(cache_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert left(cache_root, capsys, "--all") == ([], 3)
    assert run(["-C", str(cache_root), "cache"]) == 0
    assert capsys.readouterr().out.startswith("0 B in ")


def test_a_size_that_is_none_is_refused(cache_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-C", str(cache_root), "cache", "--to", "a lot"]) == 2
    assert "invalid size" in capsys.readouterr().err


CONFIG = "linux_64_python3.11.____cpython"


@pytest.fixture
def log_root(tmp_path: Path) -> Path:
    """A feedstock with two builds of a config, of which the first failed, and a third run in which it was cached."""
    feedstock = builders.feedstock(tmp_path / "f", "package:\n  name: a\n  version: '1'\n")
    with Ledger(feedstock.artifacts / "ledger.sqlite") as ledger:
        for number, state in enumerate((ConfigState.FAILED, ConfigState.DONE, ConfigState.CACHED), 1):
            log = feedstock.artifacts / "logs" / f"{number:04d}" / f"{CONFIG}.log"
            if state is not ConfigState.CACHED:
                log.parent.mkdir(parents=True)
                log.write_bytes(f"run {number}: é\n".encode() + b"\xff\n")
            ledger.end_run(ledger.begin_run(runs.worked_through([CONFIG], bad={0: state}, log=log)))
    return feedstock.root


def log_kiln(log_root: Path, *arguments: str) -> int:
    return main.dispatch(["-C", str(log_root), "log", *arguments])


def test_the_log_of_the_last_build_is_printed_and_its_path_on_standard_error(
    log_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert log_kiln(log_root, CONFIG) == 0
    printed = capsys.readouterr()
    assert printed.out == "run 2: é\n\N{REPLACEMENT CHARACTER}\n"
    assert printed.err == f"run 2, done: {log_root}/build_artifacts/logs/0002/{CONFIG}.log\n"


def test_a_config_is_named_where_its_run_has_several(log_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert log_kiln(log_root) == 0
    assert capsys.readouterr().out.startswith("run 2: ")
    with Ledger(log_root / "build_artifacts" / "ledger.sqlite") as ledger:
        ledger.end_run(ledger.begin_run(runs.worked_through([CONFIG, "b"])))
    with pytest.raises(UsageError, match="has 2 configs") as caught:
        log_kiln(log_root)
    assert caught.value.hint == f"name one: {CONFIG}, b"


def test_a_run_can_be_selected_and_the_file_of_the_config_named(
    log_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert log_kiln(log_root, f".ci_support/{CONFIG}.yaml", "--run", "1", "--json") == 0
    log = json.loads(capsys.readouterr().out)
    assert (log["run"], log["state"], log["config"]) == (1, "failed", CONFIG)
    assert log["text"].startswith("run 1")
    assert log["log"].endswith(f"0001/{CONFIG}.log")
    assert log["reason"].startswith("the compile step ended")


def test_a_feedstock_that_was_moved_has_its_logs(log_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moved = log_root.rename(log_root.with_name("moved"))
    assert log_kiln(moved, CONFIG) == 0
    assert capsys.readouterr().out.startswith("run 2")


def test_a_run_in_which_the_config_was_cached_has_no_log(log_root: Path) -> None:
    with pytest.raises(UsageError, match=r"run 3 has no log of .*\n  why: same inputs as in run 6\n  try: .*runs"):
        log_kiln(log_root, CONFIG, "--run", "3")


def test_a_misspelt_config_is_told_with_the_nearest(log_root: Path) -> None:
    with pytest.raises(UnknownConfig, match=rf"did you mean '{CONFIG}'\?"):
        log_kiln(log_root, CONFIG.replace("11", "12"))


def test_a_run_without_the_config_is_told_with_those_that_have_it(log_root: Path) -> None:
    with Ledger(log_root / "build_artifacts" / "ledger.sqlite") as ledger:
        ledger.end_run(ledger.begin_run(runs.worked_through(["other"])))
    with pytest.raises(UnknownConfig, match=rf"run 4 has no config '{CONFIG}'\n  try: runs with it: 3, 2, 1"):
        log_kiln(log_root, CONFIG, "--run", "4")


def test_a_run_that_does_not_exist_is_told(log_root: Path) -> None:
    with pytest.raises(UsageError, match="run 9 not found"):
        log_kiln(log_root, CONFIG, "--run", "9")


def test_a_link_in_the_place_of_a_log_is_not_followed(
    log_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    log = log_root / "build_artifacts" / "logs" / "0002" / f"{CONFIG}.log"
    log.unlink()
    log.symlink_to(secret)
    assert main.run(["-C", str(log_root), "log", CONFIG]) == NotWritable.exit_code
    assert "secret\n" not in capsys.readouterr().out


def test_an_old_ledger_without_commits_is_read(log_root: Path) -> None:
    with Ledger(log_root / "build_artifacts" / "ledger.sqlite") as ledger:
        with ledger._write_transaction() as connection:
            connection.execute("UPDATE run SET detail = json_remove(detail, '$.commit', '$.kiln_version', '$.ci_url')")
        report = ledger.run_report(1)
    assert report is not None
    assert (report.commit, report.kiln_version, report.ci_url) == ("", "", "")


@pytest.fixture
def feedstock(tmp_path: Path) -> Path:
    """A feedstock with one config and two recorded runs."""
    root = tmp_path / "some-feedstock"
    configs = {CONFIG: "python:\n- 3.11.* *_cpython\ntarget_platform:\n- linux-64\n"}
    builders.feedstock(root, "package: {name: some}\n", configs=configs)
    with Ledger(root / "build_artifacts" / "ledger.sqlite") as ledger:
        for jobs in (1, 2):
            ledger.end_run(ledger.begin_run(runs.worked_through([CONFIG], jobs=jobs)))
    return root


def report_kiln(root: Path, *arguments: str) -> int:
    return main.dispatch(["-C", str(root), "report", *arguments])


def test_the_latest_run_is_written_beside_the_packages(feedstock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_kiln(feedstock) == 0
    page = feedstock / "build_artifacts" / "reports" / "0002.html"
    table = capsys.readouterr().out.splitlines()
    assert table[2].startswith("Python 3.11")
    assert table[-1] == f"page: {page}"
    assert "some-feedstock" in page.read_text()
    assert "Python 3.11" in page.read_text()


def test_a_run_can_be_named_and_the_page_put_elsewhere(
    feedstock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_kiln(feedstock, "1", "--out", str(tmp_path / "page.html")) == 0
    assert "run 1" in (page := (tmp_path / "page.html").read_text())
    assert "index.html" not in page
    assert not (tmp_path / "index.html").exists()
    capsys.readouterr()
    assert report_kiln(feedstock, "--json") == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 2
    assert not (feedstock / "build_artifacts" / "reports").exists(), "a page that was not asked for"


def test_a_config_whose_file_is_gone_keeps_its_name(feedstock: Path) -> None:
    (feedstock / ".ci_support" / f"{CONFIG}.yaml").unlink()
    assert report_kiln(feedstock) == 0
    page = (feedstock / "build_artifacts" / "reports" / "0002.html").read_text()
    assert CONFIG in page.replace("<wbr>", "")


def test_a_run_that_is_not_there_is_told_with_those_that_are(feedstock: Path) -> None:
    with pytest.raises(UsageError, match="run 9 not found\n  try: the latest is 2, the first 1"):
        report_kiln(feedstock, "9")


def test_where_nothing_was_run_nothing_is_begun(feedstock: Path) -> None:
    ledger = feedstock / "build_artifacts" / "ledger.sqlite"
    ledger.unlink()
    with pytest.raises(UsageError, match="no run is recorded"):
        report_kiln(feedstock)
    assert not ledger.exists()


def test_a_recorded_run_is_written_for_a_ci(feedstock: Path, tmp_path: Path) -> None:
    assert report_kiln(feedstock, "1", "--junit", str(tmp_path / "out" / "junit.xml")) == 0
    text = (tmp_path / "out" / "junit.xml").read_text()
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="kiln run 1"')
    assert f'<testsuite name="{CONFIG}"' in text
    assert not (feedstock / "build_artifacts" / "reports").exists()


def test_the_page_is_compared_with_the_run_before_and_listed_in_an_index(feedstock: Path) -> None:
    pages = feedstock / "build_artifacts" / "reports"
    assert report_kiln(feedstock, "1") == 0
    assert 'href="./0002.html"' not in (pages / "index.html").read_text()
    assert report_kiln(feedstock) == 0
    index = (pages / "index.html").read_text()
    assert index.index('href="./0002.html"') < index.index('href="./0001.html"')
    assert 'Since run <a href="./0001.html">1</a>' in (pages / "0002.html").read_text()
    assert 'href="./index.html"' in (pages / "0002.html").read_text()


def test_no_page_is_written_through_a_link(feedstock: Path, tmp_path: Path) -> None:
    pages = feedstock / "build_artifacts" / "reports"
    pages.mkdir()
    target = tmp_path / "target"
    target.write_text("mine\n")
    (pages / "index.html").symlink_to(target)
    with pytest.raises(NotWritable, match=r"index\.html is a link"):
        report_kiln(feedstock)
    assert target.read_text() == "mine\n"


def test_a_run_older_than_the_index_has_a_page(feedstock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_runs, "INDEXED", 1)
    assert report_kiln(feedstock, "1") == 0
    pages = feedstock / "build_artifacts" / "reports"
    assert "run 1" in (pages / "0001.html").read_text()
    index = (pages / "index.html").read_text()
    assert "run 2" in index
    assert "1 earlier run:" in index
