"""A step runs once, and its result is reused while its inputs and its files are unchanged."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln.base.errors import BudgetSpent, BuildFailed, DownloadFailed, KilnError, SolveFailed, UsageError
from kiln.build.engine_calls import (
    ATTEMPTS,
    OUTDATED,
    EngineCalls,
    StepCache,
    call_with_download_retries,
    explained_solve_error,
    phase_that_line_begins,
)
from kiln.build.job.job import BuildOptions
from kiln.build.job.messages import StepReporter
from kiln.build.steps import BuildStep, CompileStep, FetchedSource
from kiln.conda import solve as conda_solve
from kiln.recipe.rendered import Checkout, Source
from kiln.state.ledger.ledger import Ledger
from tests import builders

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    assert not second.run("compile", {"recipe": "b"}).reused


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
    assert attempt.run("build a").reused, "a result of this attempt"
    assert attempt.titles == list(steps)
    later = Attempt(tmp_path)
    assert [later.run(title).reused for title in steps] == [True, True]


def outcome(monkeypatch: pytest.MonkeyPatch, *errors: str) -> int:
    """Return how often a function was called that fails with the errors, one after another, and then succeeds."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    remaining: Iterator[str] = iter(errors)
    calls = []

    def do() -> None:
        calls.append(1)
        if why := next(remaining, ""):
            raise DownloadFailed("a could not be built", why=why)

    with StepReporter().step("build") as display:
        try:
            call_with_download_retries(do, display)
        except DownloadFailed:
            return -len(calls)
    return len(calls)


def test_a_fault_that_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(monkeypatch, "error sending request for url (u)") == 2
    assert outcome(monkeypatch, *["connection reset"] * ATTEMPTS) == -ATTEMPTS
    assert outcome(monkeypatch, "Failed to fetch from u: HTTP status client error (404 Not Found) for url (u)") == -1


def test_a_download_of_kilns_own_is_tried_again_unless_the_answer_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = "https://a.org/b: the server answered 404\n       file:///c: no such file"
    assert outcome(monkeypatch, gone) == -1
    assert outcome(monkeypatch, "https://a.org/b: the server answered 503", gone) == -2
    assert outcome(monkeypatch, f"{gone}\n       https://b.org/a: b.org cannot be reached: timed out") == 2


def test_a_source_that_kiln_fetches_is_an_input_but_for_its_password() -> None:
    def inputs(**fields: str) -> dict[str, Any]:
        source = Source(checkout=Checkout(program="svn", url="https://a.org", **fields))  # type: ignore[arg-type]
        fetched = (FetchedSource(source=source, position=0),)
        step = CompileStep(title="c", recipe={}, folder=Path("/w"), channels=(), environment={}, fetched=fetched)
        calls = EngineCalls(job=cast("Any", None), granted=(), recipe_digest="", packed_digest="", environment={})
        return calls.inputs_that_decide_result(step)

    assert "swordfish" not in str(inputs(password="swordfish"))
    assert inputs(password="swordfish") == inputs(password="other")
    assert inputs(revision="7") != inputs(revision="8")


def test_a_package_is_made_again_for_files_that_only_it_contains() -> None:
    shared: dict[str, Any] = {"recipe": {}, "folder": Path("/w"), "channels": (), "environment": {}}
    calls = EngineCalls(job=cast("Any", None), granted=(), recipe_digest="scripts", packed_digest="all", environment={})
    assert calls.inputs_that_decide_result(CompileStep(title="compile", **shared))["files"] == "scripts"
    assert calls.inputs_that_decide_result(BuildStep(output=builders.output(), index={}, **shared))["files"] == "all"


GRANT = "the script has no network: grant it in the recipe (extra: network: [build app]), or --network always"


@pytest.mark.parametrize(
    ("words", "granted", "hint"),
    [
        ({"network": True, "queue": Path("/f/scripts")}, (), GRANT),
        ({"network": True, "queue": Path("/f/scripts")}, ("build *",), "as before"),
        ({"network": False}, (), GRANT),
        ({"network": True}, (), "as before"),
        ({"network": False, "options": BuildOptions(rehearsal=True)}, (), "as before"),
    ],
    ids=["apart", "granted", "no network at all", "network everywhere", "rehearsal"],
)
@pytest.mark.parametrize("said", ["getaddrinfo failed", "its script uses the network, which fails: a.org"])
def test_a_script_without_the_network_is_told_how_it_gets_it(
    words: dict[str, Any], granted: tuple[str, ...], hint: str, said: str
) -> None:
    job = builders.build_job(Path("/f"), **words)
    calls = EngineCalls(job=job, granted=granted, recipe_digest="", packed_digest="", environment={})
    with pytest.raises(BuildFailed) as caught, calls.scripts_without_network("build app"):
        raise BuildFailed(said, hint="as before")
    assert caught.value.hint == hint


SEARCH = "app could not be built: Failed to resolve dependencies: error sending request for url (u)"


@pytest.mark.parametrize(
    ("failure", "found", "expected"),
    [
        (DownloadFailed(SEARCH), DownloadFailed("the channel x cannot be reached", why="x: refused"), "x: refused"),
        (SolveFailed("no"), SolveFailed("nothing in x satisfies a", why="tree"), "tree"),
        (DownloadFailed("app could not be built: error sending request for url (source)", why="own"), None, "own"),
    ],
)
def test_a_failed_search_for_packages_has_its_own_reason(
    monkeypatch: pytest.MonkeyPatch, failure: KilnError, found: KilnError | None, expected: str
) -> None:
    def solve(*_: object, **__: object) -> None:
        assert found is not None, "a source that cannot be fetched is not a failed search"
        raise found

    monkeypatch.setattr(conda_solve, "solve", solve)
    monkeypatch.setattr(conda_solve, "machine_virtual_packages", lambda _: {})
    recipe = {"requirements": {"host": ["a"]}}
    step = BuildStep(
        output=builders.output(), index={}, recipe=recipe, folder=Path("/w"), channels=("x",), environment={}
    )
    error = explained_solve_error(step, failure, {})
    assert (type(error), error.why) == (type(failure), expected)
    assert found is None or error.what == f"host requirements: {found.what}"


LINES = [
    ("  Platform: linux-64 [__unix=0=0]", "solve"),
    ("Finalized run dependencies (a-1-0):", "install"),
    ("Finalized run dependencies: this output has no run dependencies", "install"),
    ("the script begins", "script"),
    ("the script ended after 3.1 s", "pack"),
    ("+ make", ""),
    ("Platform: said by a script", ""),
]


@pytest.mark.parametrize(("line", "phase"), LINES)
def test_a_line_of_the_engine_begins_a_phase(line: str, phase: str) -> None:
    assert phase_that_line_begins(line) == phase


def test_a_step_reports_the_time_of_each_phase_once() -> None:
    reporter = StepReporter()
    with reporter.step("build a") as step:
        for name in ("download", "solve", "download", "script"):
            step.enter_phase(name)
    (report,) = reporter.steps
    assert [phase.name for phase in report.phases] == ["download", "solve", "script"]
    assert sum(phase.seconds for phase in report.phases) <= report.seconds + 0.01
