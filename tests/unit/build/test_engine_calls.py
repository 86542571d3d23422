"""A step runs once, and its result is reused while its inputs and its files are unchanged."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BudgetSpent, UsageError
from kiln.build.engine_calls import OUTDATED, StepCache
from kiln.build.job.messages import StepReporter
from kiln.state.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.build.engine_calls import StepResult
    from kiln.build.job.messages import ReportedStep


class Attempt:
    """An attempt to build a config, whose steps write a file each into a folder, and record that they ran."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.reporter = StepReporter()
        ledger = Ledger(folder / "steps.sqlite")
        self.cache = StepCache(config="config", ledger=ledger, console=self.reporter, **options)
        self.titles: list[str] = []

    def run(self, title: str, inputs: Mapping[str, Any] | None = None, *, leaves: str = "") -> StepResult:
        def do(_: ReportedStep) -> tuple[list[Path], dict[str, Any]]:
            self.titles.append(title)
            path = self.folder / f"{title}.txt"
            path.write_text(title)
            return [path], {"note": f"of {title}"}

        return self.cache.run_or_reuse(title, inputs or {}, do, leaves)


def test_a_step_whose_inputs_are_unchanged_is_reused_by_the_next_attempt(tmp_path: Path) -> None:
    first, second = Attempt(tmp_path), Attempt(tmp_path)
    made, reused = (attempt.run("compile", {"recipe": "a"}) for attempt in (first, second))
    assert (first.titles, second.titles) == (["compile"], [])
    assert (made.reused, reused.reused) == (False, True)
    assert (reused.paths, reused.detail) == (made.paths, {"note": "of compile"})
    assert [step.reused for step in (*first.reporter.steps, *second.reporter.steps)] == [False, True]


def test_a_step_with_other_inputs_runs(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    for recipe in "ab":
        attempt.run("compile", {"recipe": recipe})
    assert attempt.titles == ["compile", "compile"]


@pytest.mark.parametrize("content", [None, "changed"])
def test_a_step_whose_file_is_missing_or_changed_runs_again(tmp_path: Path, content: str | None) -> None:
    attempt = Attempt(tmp_path)
    (path,) = attempt.run("compile").paths
    path.unlink() if content is None else path.write_text(content)
    assert not attempt.run("compile").reused
    assert path.read_text() == "compile"


def test_a_step_that_failed_runs_again(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)

    def fail(_: ReportedStep) -> tuple[list[Path], dict[str, Any]]:
        raise OSError

    with contextlib.suppress(OSError):
        attempt.cache.run_or_reuse("compile", {}, fail)
    assert not attempt.run("compile").reused


@pytest.mark.parametrize("detail", [{}, {"files": []}, {"files": {"a": "b"}, "detail": 7}, {"files": {"a": "b"}}])
def test_a_record_that_cannot_be_read_is_not_reused(tmp_path: Path, detail: dict[str, Any]) -> None:
    attempt = Attempt(tmp_path)
    attempt.run("compile")
    (record,) = attempt.cache.ledger.latest_steps("compile", "config")
    attempt.cache.ledger.store_step(record.key, config="config", title="compile", seconds=1.0, detail=detail)
    assert not attempt.run("compile").reused


def test_no_step_runs_once_the_build_is_to_stop_and_finished_ones_are_reused(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, stop=tmp_path / "stop")
    attempt.run("compile")
    (tmp_path / "stop").touch()
    assert attempt.run("compile").reused
    with pytest.raises(BudgetSpent, match="stopped by --budget"):
        attempt.run("build a")
    assert attempt.titles == ["compile"]


def test_a_step_before_the_requested_one_is_reused_although_its_inputs_have_changed(tmp_path: Path) -> None:
    Attempt(tmp_path).run("compile", {"recipe": "a"})
    attempt = Attempt(tmp_path, settled=("compile",), again=("build a",))
    assert attempt.run("compile", {"recipe": "b"}).outdated
    assert attempt.reporter.steps[0].notes == (OUTDATED,)
    assert not attempt.run("compile", {"recipe": "a"}).outdated


def test_a_step_before_the_requested_one_that_was_never_finished_is_named(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, settled=("compile",), again=("build a", "test a"))
    with pytest.raises(UsageError, match="cannot start at 'build a': the step 'compile' before it is not finished"):
        attempt.run("compile")
    assert attempt.titles == []


def test_a_step_before_the_requested_one_must_have_made_the_file_that_it_would_make_now(tmp_path: Path) -> None:
    Attempt(tmp_path).run("build a")
    attempt = Attempt(tmp_path, settled=("build a",), again=("test a",))
    assert attempt.run("build a", leaves="build a.txt").reused
    with pytest.raises(UsageError, match="the step 'build a' before it is not finished"):
        attempt.run("build a", leaves="a-2-0.conda")


def test_the_requested_step_and_those_after_it_run_again_once(tmp_path: Path) -> None:
    steps = ("build a", "test a")
    former = Attempt(tmp_path)
    for title in steps:
        former.run(title)
    attempt = Attempt(tmp_path, again=steps)
    for title in steps:
        attempt.run(title)
    assert attempt.titles == list(steps)
    later = Attempt(tmp_path)
    assert [later.run(title).reused for title in steps] == [True, True]


def test_the_results_of_this_attempt_are_not_dropped_with_the_former_ones(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, again=("build a", "test a"))
    assert [attempt.run("build a").reused for _ in range(2)] == [False, True]
