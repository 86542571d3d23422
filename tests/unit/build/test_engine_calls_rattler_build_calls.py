"""Inputs of steps that decide whether results are reused, and repeated downloads."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln.base.errors import DownloadFailed, KilnError, SolveFailed
from kiln.build.engine_calls import ATTEMPTS, EngineCalls, call_with_download_retries, explained_solve_error
from kiln.build.job.messages import StepReporter
from kiln.build.steps import BuildStep, CompileStep, FetchedSource
from kiln.conda import solve as conda_solve
from kiln.recipe.rendered import Checkout, Output, Source

if TYPE_CHECKING:
    from collections.abc import Iterator

OUTPUT = Output(
    name="app", version="1", build_number=0, build_string="0", subdir="linux-64", run_exports={}, about={}, used={}
)


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


def test_a_file_that_the_server_lacks_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert calls.inputs_that_decide_result(BuildStep(output=OUTPUT, index={}, **shared))["files"] == "all"


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
    step = BuildStep(output=OUTPUT, index={}, recipe=recipe, folder=Path("/w"), channels=("x",), environment={})
    error = explained_solve_error(step, failure, {})
    assert (type(error), error.why) == (type(failure), expected)
    assert found is None or error.what == f"host requirements: {found.what}"
