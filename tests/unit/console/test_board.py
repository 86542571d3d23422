"""What is left of a run is estimated from what is known."""

from __future__ import annotations

from kiln.console.board import TAIL, Board
from kiln.model.run import CellState
from tests.unit.console.run import BEGAN, a_cell, a_run


def test_the_rest_of_a_run_is_what_its_slots_have_before_them() -> None:
    board = Board()
    board.take(
        a_run(
            a_cell("a", CellState.RUNNING, estimate=100.0),
            a_cell("b", CellState.RUNNING, estimate=300.0),
            a_cell("c", CellState.WAITING, estimate=250.0),
        )
    )
    assert board.remaining(BEGAN + 40) == 60 + 250  # c follows a; b ends before


def test_a_cell_without_an_estimate_counts_as_those_that_have_ended() -> None:
    board = Board()
    board.take(a_run(a_cell("a", CellState.DONE), a_cell("b", CellState.WAITING)))
    assert board.remaining(BEGAN + 120) == 120


def test_a_cell_that_takes_longer_than_estimated_ends_at_any_moment() -> None:
    board = Board()
    board.take(a_run(a_cell("a", CellState.RUNNING, estimate=10.0)))
    assert board.remaining(BEGAN + 40) == 0


def test_nothing_is_estimated_from_nothing() -> None:
    board = Board()
    board.take(a_run(a_cell("a", CellState.RUNNING), a_cell("b", CellState.FOUND)))
    assert board.remaining(BEGAN) is None


def test_a_few_lines_of_the_latest_step_are_kept() -> None:
    board = Board()
    board.hear("a", "compile", "of the step before")
    for number in range(1000):
        board.hear("a", "test", f"line {number}")
    board.hear("a", "test", "   \r")
    assert board.last_line("a") == "line 999"
    assert len(board.tail("a")) == TAIL - 1
    assert "of the step before" not in board.tail("a")
