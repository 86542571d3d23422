"""--budget and --handover are for one config, by kiln's own engine, and say beforehand what they cannot do."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.cli import build, main
from kiln.state.results import ConfigRun, ConfigState, MatrixReport
from tests import builders
from tests.unit.run.test_plan import a_plan

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

META = "package:\n  name: small\n  version: '1'\n"


def parsed(*words: str) -> argparse.Namespace:
    parser, _ = main.command_parser_and_module("build")
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "configs", "what"),
    [
        (("--budget", "1h", "--rehearse"), ("a",), "exclude --rehearse"),
        (("--notice", "file", "--rehearse"), ("a",), "exclude --rehearse"),
        (("--handover", "dir", "--engine", "conda-build"), ("a",), "exclude --engine conda-build"),
        (("--handover", "dir"), ("a", "b"), "for one config"),
        (("--handover", "dir", "--rebuild"), ("a",), "excludes --rebuild"),
        (("--handover", "dir", "--from-step", "compile"), ("a",), "excludes --rebuild and --from-step"),
    ],
)
def test_what_a_chain_cannot_do_is_refused(
    tmp_path: Path, words: tuple[str, ...], configs: tuple[str, ...], what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        build.requested_job_chain(builders.feedstock(tmp_path, META), parsed(*words), configs)


def test_a_budget_alone_has_no_chain(tmp_path: Path) -> None:
    assert build.requested_job_chain(builders.feedstock(tmp_path, META), parsed("--budget", "1h"), ("a", "b")) is None


@pytest.mark.parametrize(("script", "lines"), [("make", 2), ('bazel --disk_cache="$BAZEL_DISK_CACHE"', 1)])
def test_a_compile_that_exceeds_the_budget_is_told_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str, lines: int
) -> None:
    feedstock = builders.feedstock(tmp_path, META)
    (feedstock.recipe / "build.sh").write_text(script)
    build.take_over_from_previous_job(None, feedstock, a_plan(estimate=7200.0), parsed("--budget", "1h"))
    notes = capsys.readouterr().err.splitlines()
    assert notes[0] == "note: took 2 h 00 min when it was last built, and --budget is 1 h 00 min"
    assert len(notes) == lines
    build.take_over_from_previous_job(None, feedstock, a_plan(estimate=1800.0), parsed("--budget", "1h"))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("left", "most"), [(16.0, 100_000_000), (-5.0, 0), (1e9, 20_000_000_000)])
def test_after_a_notice_no_more_is_handed_on_than_there_is_time_for(tmp_path: Path, left: float, most: int) -> None:
    notice = tmp_path / "notice"
    notice.write_text(json.dumps({"at": time.time() + left}))
    options = parsed("--handover", str(tmp_path / "handover"), "--notice", str(notice))
    chain = build.requested_job_chain(builders.feedstock(tmp_path / "feedstock", META), options, ("a",))
    assert chain is not None
    report = MatrixReport(
        run=1,
        command="",
        started=0.0,
        finished=1.0,
        machine="m",
        cores=2,
        jobs=1,
        engine="rattler-build",
        container="none",
        configs=(ConfigRun(config="a", state=ConfigState.FAILED, group="cpu"),),
    )
    assert build.hand_over_to_next_job(chain, report, {}, options) is None
    assert 0.9 * most <= chain.bound <= most
