"""A picture of a run fits its terminal and tells what matters."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from kiln.console.board import Board
from kiln.console.frame import Line, frame
from kiln.console.states import SIGNS
from kiln.model.run import CellState
from tests.unit.console.run import BEGAN, a_cell, a_run


def text(lines: list[Line]) -> str:
    return "\n".join("".join(part for part, _ in line).rstrip() for line in lines)


def a_board() -> Board:
    board = Board({"a": "CUDA 12.9 · Python 3.10", "b": "CUDA 12.9 · Python 3.11", "c": "CPU · Python 3.10"})
    board.take(
        a_run(
            a_cell("a", CellState.DONE),
            a_cell("b", CellState.RUNNING, estimate=180.0),
            a_cell("c", CellState.OUT_OF_MEMORY, reason="the compiler was ended\nat 31 GB"),
        )
    )
    board.hear("b", "build tensorflow-base", "[1,234 / 5,678] Compiling 日本語.cc")
    return board


def test_a_picture_is_this() -> None:
    assert text(frame(a_board(), now=BEGAN + 125, width=120, height=30)) == (
        "1 of 3 done, 1 out of memory, 1 running  2:05, about 1 min 00 s left\n"
        + "━" * 120
        + "\n✓ CUDA 12.9 · Python 3.10             2:00  done"
        "\n▸ CUDA 12.9 · Python 3.11     2:05 / ~3:00  build tensorflow-base           "
        "[1,234 / 5,678] Compiling 日本語.cc"
        "\n▲ CPU · Python 3.10                   2:00  out of memory                   the compiler was ended"
    )


@pytest.mark.parametrize("width", [*range(2, 40), 60, 79, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for line in frame(a_board(), now=BEGAN + 125, width=width, height=30):
        assert sum(cell_len(part) for part, _ in line) <= width


def test_on_a_narrow_terminal_names_keep_what_tells_them_apart_and_the_time_is_shown() -> None:
    lines = text(frame(a_board(), now=BEGAN + 125, width=39, height=30)).splitlines()
    assert lines[0] == "1 of 3 done  2:05"
    assert [line[2:21] for line in lines[2:]] == ["CUDA 12.9…thon 3.10", "CUDA 12.9…thon 3.11", "CPU · Python 3.10  "]


def test_where_there_are_too_many_cells_those_that_matter_are_shown() -> None:
    board = Board()
    board.take(
        a_run(
            *(a_cell(f"done{number}", CellState.DONE) for number in range(100)),
            a_cell("bad", CellState.FAILED),
            a_cell("busy", CellState.RUNNING),
            *(a_cell(f"later{number}", CellState.WAITING) for number in range(90)),
        )
    )
    lines = frame(board, now=BEGAN + 1, width=80, height=10)
    assert len(lines) <= 10
    assert "bad" in text(lines)
    assert "busy" in text(lines)
    assert text(lines).endswith("… and 86 waiting, 100 done")
    assert len(frame(board, now=BEGAN + 1, width=80, height=None)) == 2 + 192


def test_every_state_has_a_sign_of_its_own_that_is_one_column_wide() -> None:
    assert len(set(SIGNS.values())) == len(CellState)
    assert all(cell_len(SIGNS[state]) == 1 for state in CellState)
