"""The end of a build: the exit code of its failure, and advice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import AlreadyRunning, BuildFailed, DiskFull, KilnError, SolveFailed
from kiln.build.job.job import RunOptions
from kiln.cli import build, main
from kiln.recipe.feedstock import Feedstock
from kiln.state.results import ConfigRun, ConfigState, MatrixReport

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def code(states: Mapping[str, ConfigState], errors: Mapping[str, KilnError]) -> int:
    report = MatrixReport(
        run=1,
        command="",
        started=0.0,
        finished=1.0,
        machine="m",
        cores=1,
        jobs=1,
        engine="e",
        container="none",
        configs=tuple(ConfigRun(config=config, state=state, group="g") for config, state in states.items()),
    )
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


@pytest.mark.parametrize(("words", "notes"), [((), "note: be careful\n"), (("--quiet",), "")])
def test_a_quiet_build_prints_no_notes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    notes: str,
) -> None:
    plan = SimpleNamespace(notes=("be careful",))
    monkeypatch.setattr("kiln.run.runner.plan_run", lambda *_, **__: plan)
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
