"""``kiln log`` prints the log of a config's build."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import NotWritable, UnknownConfig, UsageError
from kiln.cli import main
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import ConfigState
from tests import builders, runs

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = "linux_64_python3.11.____cpython"


@pytest.fixture
def root(tmp_path: Path) -> Path:
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


def kiln(root: Path, *arguments: str) -> int:
    return main.dispatch(["-C", str(root), "log", *arguments])


def test_the_log_of_the_last_build_is_printed_and_its_path_on_standard_error(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kiln(root, CONFIG) == 0
    printed = capsys.readouterr()
    assert printed.out == "run 2: é\n\N{REPLACEMENT CHARACTER}\n"
    assert printed.err == f"run 2, done: {root}/build_artifacts/logs/0002/{CONFIG}.log\n"


def test_a_run_can_be_selected_and_the_file_of_the_config_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kiln(root, f".ci_support/{CONFIG}.yaml", "--run", "1", "--json") == 0
    log = json.loads(capsys.readouterr().out)
    assert (log["run"], log["state"], log["config"]) == (1, "failed", CONFIG)
    assert log["text"].startswith("run 1")
    assert log["log"].endswith(f"0001/{CONFIG}.log")
    assert log["reason"].startswith("the compile step ended")


def test_a_feedstock_that_was_moved_has_its_logs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moved = root.rename(root.with_name("moved"))
    assert kiln(moved, CONFIG) == 0
    assert capsys.readouterr().out.startswith("run 2")


def test_a_run_in_which_the_config_was_cached_has_no_log(root: Path) -> None:
    with pytest.raises(UsageError, match=r"run 3 has no log of .*\n  why: same inputs as in run 6\n  try: .*runs"):
        kiln(root, CONFIG, "--run", "3")


def test_a_misspelt_config_is_told_with_the_nearest(root: Path) -> None:
    with pytest.raises(UnknownConfig, match=rf"did you mean '{CONFIG}'\?"):
        kiln(root, CONFIG.replace("11", "12"))


def test_a_run_that_does_not_exist_is_told(root: Path) -> None:
    with pytest.raises(UsageError, match="run 9 not found"):
        kiln(root, CONFIG, "--run", "9")


def test_a_link_in_the_place_of_a_log_is_not_followed(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    log = root / "build_artifacts" / "logs" / "0002" / f"{CONFIG}.log"
    log.unlink()
    log.symlink_to(secret)
    assert main.run(["-C", str(root), "log", CONFIG]) == NotWritable.exit_code
    assert "secret\n" not in capsys.readouterr().out


def test_an_old_ledger_without_commits_is_read(root: Path) -> None:
    with Ledger(root / "build_artifacts" / "ledger.sqlite") as ledger:
        with ledger._write_transaction() as connection:
            connection.execute("UPDATE run SET detail = json_remove(detail, '$.commit', '$.kiln_version', '$.ci_url')")
        report = ledger.run_report(1)
    assert report is not None
    assert (report.commit, report.kiln_version, report.ci_url) == ("", "", "")
