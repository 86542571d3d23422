"""Which cells are built is decided by the command line, and by a person only where there is one."""

from __future__ import annotations

import argparse
import io
from typing import TYPE_CHECKING

import pytest

from kiln.cli import cells
from kiln.cli.build_arguments import arguments
from kiln.errors import UnknownConfig, UsageError
from kiln.model.feedstock import Feedstock
from kiln.model.run import CellState

if TYPE_CHECKING:
    from pathlib import Path


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
    arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("a11",), ("a11",)),
        (("a11.yaml", ".ci_support/a12.yaml", "a11"), ("a11", "a12")),
        (("--all",), ("a11", "a12", "b11")),
        (("--all", "--filter", "*11"), ("a11", "b11")),
        (("--filter", "b*"), ("b11",)),
        (("a11", "b11", "--filter", "b*"), ("b11",)),
    ],
)
def test_named_and_filtered_cells_are_taken(
    feedstock: Feedstock, words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert cells.wanted(feedstock, options(*words)) == expected


def test_without_anybody_to_ask_a_cell_must_be_named(feedstock: Feedstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n"))
    with pytest.raises(UsageError, match="3 cells could be built"):
        cells.wanted(feedstock, options())


def test_a_person_picks_by_number(feedstock: Feedstock, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr("sys.stdin", Terminal("2\n"))
    assert cells.wanted(feedstock, options("--filter", "*11")) == ("b11",)
    assert "1. a11\n2. b11\n" in shown.getvalue()


@pytest.mark.parametrize("answer", ["", "0", "3", "x", "-1"])
def test_an_answer_that_is_no_number_of_the_menu_is_refused(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    with pytest.raises(UsageError, match="none of the numbers 1 to 2"):
        cells.menu(("a", "b"))


def test_a_pattern_that_matches_nothing_is_told(feedstock: Feedstock) -> None:
    with pytest.raises(UnknownConfig, match="no cell matches 'x'"):
        cells.wanted(feedstock, options("--all", "--filter", "x"))
    with pytest.raises(UnknownConfig, match="no cell of a11 matches"):
        cells.wanted(feedstock, options("a11", "--filter", "b*"))


def test_failed_cells_are_those_that_failed_or_were_stopped() -> None:
    states = {
        "a": CellState.FAILED,
        "b": CellState.DONE,
        "c": CellState.INTERRUPTED,
        "d": CellState.FOUND,
        "e": CellState.OUT_OF_MEMORY,
        "f": CellState.DISK_FULL,
    }
    assert cells.failed_of(("a", "b", "c", "d", "e", "f", "never"), states) == ("a", "c", "e", "f")
