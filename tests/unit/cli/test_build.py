"""The end of a build: the exit code of its failure, and advice."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import AlreadyRunning, BuildFailed, DiskFull, KilnError, SolveFailed, UsageError
from kiln.build.job.job import RunOptions
from kiln.cli import build, main
from kiln.recipe.feedstock import Feedstock
from kiln.state.results import ConfigRun, ConfigState
from tests import builders
from tests.unit.run.test_plan import a_plan
from tests.unit.run.view.run import a_run

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path


def code(states: Mapping[str, ConfigState], errors: Mapping[str, KilnError]) -> int:
    report = a_run(*(ConfigRun(config=config, state=state, group="g") for config, state in states.items()))
    return build.print_advice_and_return_exit_code(report, errors)


def test_the_exit_code_is_that_of_what_failed() -> None:
    done, failed, elsewhere = ConfigState.DONE, ConfigState.FAILED, ConfigState.LOCKED
    busy, full = AlreadyRunning("busy"), DiskFull("full")
    assert code({"a": done, "b": ConfigState.CACHED}, {}) == 0
    assert code({"a": done, "b": ConfigState.DISK_FULL}, {"b": full}) == DiskFull.exit_code
    assert code({"a": failed, "b": ConfigState.DISK_FULL}, {"a": BuildFailed("x"), "b": full}) == BuildFailed.exit_code
    assert code({"a": elsewhere, "b": done}, {"a": busy}) == AlreadyRunning.exit_code
    assert code({"a": elsewhere, "b": ConfigState.DISK_FULL}, {"a": busy, "b": full}) == DiskFull.exit_code
    assert code({"a": failed}, {}) == BuildFailed.exit_code


def test_a_failure_is_explained_by_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("fine\n" * 100 + "nvcc fatal   : Unsupported gpu architecture 'compute_35'\n")
    cause, cure = build.failure_advice(BuildFailed("the script ended with exit code 1"), log)
    assert cause == "  cause: This nvcc does not compile for compute_35. CUDA that does: 7.0 to 11.8."
    assert cure.startswith("  try: Take one of these in cuda_compiler_version")
    assert build.failure_advice(DiskFull("full", hint="free some room"), log) == ["  try: free some room"]
    assert build.failure_advice(BuildFailed("x"), tmp_path / "no log") == []
    assert build.failure_advice(BuildFailed("x"), None) == []


@pytest.mark.parametrize(("words", "notes"), [((), "pulling\nnote: be careful\n"), (("--quiet",), "")])
def test_a_quiet_build_prints_no_notes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    notes: str,
) -> None:
    plan = SimpleNamespace(notes=("be careful",))
    monkeypatch.setattr("kiln.run.runner.plan_run", lambda *_, on_line: on_line("pulling") or plan)
    options = main.command_parser_and_module("build")[0].parse_args(words)
    build.plan_run_and_print_notes(Feedstock(root=tmp_path), RunOptions(configs=(), command=""), options)
    assert capsys.readouterr().err == notes


def test_the_report_as_json_has_the_whole_error_of_each_config() -> None:
    errors = {"a": SolveFailed("nothing satisfies x", why="the solver's tree", hint="see the channels")}
    data = build.report_json_with_errors({"configs": [{"config": "a"}, {"config": "b"}]}, errors)
    assert data["configs"][0]["error"] == {
        "type": "SolveFailed",
        "exit_code": SolveFailed.exit_code,
        "what": "nothing satisfies x",
        "why": "the solver's tree",
        "hint": "see the channels",
    }
    assert data["configs"][1]["error"] is None


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
def test_after_a_notice_no_more_is_handed_on_than_there_is_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: float, most: int
) -> None:
    now = 1_790_000_000.0
    monkeypatch.setattr(build, "time", SimpleNamespace(time=lambda: now))
    notice = tmp_path / "notice"
    notice.write_text(json.dumps({"at": now + left}))
    options = parsed("--handover", str(tmp_path / "handover"), "--notice", str(notice))
    chain = build.requested_job_chain(builders.feedstock(tmp_path / "feedstock", META), options, ("a",))
    assert chain is not None
    report = a_run(ConfigRun(config="a", state=ConfigState.FAILED, group="cpu"))
    assert build.hand_over_to_next_job(chain, report, {}, options) is None
    assert chain.bound == most
