"""Which cells are built is decided by the command line, and by a person only where there is one."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.cli import build
from kiln.errors import AlreadyRunning, BuildFailed, DiskFull, KilnError, UnknownConfig, UsageError
from kiln.model.feedstock import Feedstock
from kiln.model.run import CellRun, CellState, MatrixReport

if TYPE_CHECKING:
    from collections.abc import Mapping


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def feedstock(tmp_path: Path) -> Feedstock:
    (tmp_path / ".ci_support").mkdir()
    for name in ("a11", "a12", "b11"):
        (tmp_path / ".ci_support" / f"{name}.yaml").touch()
    return Feedstock(root=tmp_path)


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    build.arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("a11",), ("a11",)),
        (("a11.yaml", ".ci_support/a12.yaml", "a11"), ("a11", "a12")),
        (("--all",), ("a11", "a12", "b11")),
        (("--all", "--filter", "*11"), ("a11", "b11")),
        (("--filter", "b*"), ("b11",)),
    ],
)
def test_named_and_filtered_cells_are_taken(
    feedstock: Feedstock, words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert build.wanted(feedstock, options(*words)) == expected


def test_without_anybody_to_ask_a_cell_must_be_named(feedstock: Feedstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n"))
    with pytest.raises(UsageError, match="3 cells could be built"):
        build.wanted(feedstock, options())


def test_a_person_picks_by_number(feedstock: Feedstock, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr("sys.stdin", Terminal("2\n"))
    assert build.wanted(feedstock, options("--filter", "*11")) == ("b11",)
    assert "1. a11\n2. b11\n" in shown.getvalue()


@pytest.mark.parametrize("answer", ["", "0", "3", "x", "-1"])
def test_an_answer_that_is_no_number_of_the_menu_is_refused(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    with pytest.raises(UsageError, match="none of the numbers 1 to 2"):
        build.menu(("a", "b"))


def test_a_pattern_that_matches_nothing_is_told(feedstock: Feedstock) -> None:
    with pytest.raises(UnknownConfig, match="no cell matches 'x'"):
        build.wanted(feedstock, options("--all", "--filter", "x"))


def test_failed_cells_are_those_that_failed_or_were_stopped() -> None:
    states = {
        "a": CellState.FAILED,
        "b": CellState.DONE,
        "c": CellState.INTERRUPTED,
        "d": CellState.FOUND,
        "e": CellState.OUT_OF_MEMORY,
        "f": CellState.DISK_FULL,
    }
    assert build.failed_of(("a", "b", "c", "d", "e", "f", "never"), states) == ("a", "c", "e", "f")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("16GB", 16 * 10**9), ("1.5 gb", 15 * 10**8), ("500MiB", 500 << 20), ("42", 42), ("2T", 2 * 10**12)],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert build.size(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1XB", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no size"):
        build.size(text)


def test_secrets_reach_neither_builds_nor_engines() -> None:
    environment = {"PATH": "/bin", "GITHUB_TOKEN": "hidden", "DOCKER_HOST": "tcp://d", "DOCKER_IMAGE": "i", "CI": "1"}
    assert build.client(environment) == {"PATH": "/bin", "DOCKER_HOST": "tcp://d"}
    assert build.given(Feedstock(root=Path("/f")), {**environment, "sha": "1", "https_proxy": "p"}) == {
        "CI": "1",
        "sha": "1",
        "https_proxy": "p",
    }


def code(states: Mapping[str, CellState], errors: Mapping[str, KilnError]) -> int:
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
        cells=tuple(CellRun(config=config, state=state, group="g") for config, state in states.items()),
    )
    return build.exit_code(report, errors)


def test_the_exit_code_is_that_of_what_failed() -> None:
    done, failed, elsewhere = CellState.DONE, CellState.FAILED, CellState.ELSEWHERE
    busy, full = AlreadyRunning("busy"), DiskFull("full")
    assert code({"a": done, "b": CellState.FOUND}, {}) == 0
    assert code({"a": done, "b": CellState.DISK_FULL}, {"b": full}) == DiskFull.exit_code
    assert code({"a": failed, "b": CellState.DISK_FULL}, {"a": BuildFailed("x"), "b": full}) == BuildFailed.exit_code
    assert code({"a": elsewhere, "b": done}, {"a": busy}) == AlreadyRunning.exit_code
    assert code({"a": elsewhere, "b": CellState.DISK_FULL}, {"a": busy, "b": full}) == DiskFull.exit_code
    assert code({"a": failed}, {}) == BuildFailed.exit_code


@pytest.mark.parametrize("url", ["https://u:p@cache.example.org/tf", "http://10.0.0.1:8080", "grpcs://cache:9092"])
def test_the_address_of_a_remote_cache_is_taken_as_it_is(url: str) -> None:
    assert build.remote_cache(url) == url
    assert build.remote_cache("") is None


@pytest.mark.parametrize("url", ["cache.example.org", "ftp://u:secret@cache", "https://", "http://a b"])
def test_what_is_no_address_of_a_cache_is_refused_without_a_word_of_it(url: str) -> None:
    with pytest.raises(UsageError) as told:
        build.remote_cache(url)
    assert "secret" not in str(told.value)


def test_a_failure_is_explained_by_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("fine\n" * 100 + "nvcc fatal   : Unsupported gpu architecture 'compute_35'\n")
    cause, cure = build.advice(BuildFailed("the script ended with exit code 1"), log)
    assert cause == "  cause: This nvcc does not compile for compute_35. CUDA that does: 7.0 to 11.8."
    assert cure.startswith("  try: Take one of these in cuda_compiler_version")
    assert build.advice(DiskFull("full", hint="free some room"), log) == ["  try: free some room"]
    assert build.advice(BuildFailed("x"), tmp_path / "no log") == []
    assert build.advice(BuildFailed("x"), None) == []
