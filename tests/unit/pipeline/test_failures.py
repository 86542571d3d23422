"""A failure arrives in another process as it was raised, and decides what the cell's state is."""

from __future__ import annotations

import pytest

from kiln.errors import AlreadyRunning, BuildFailed, DiskFull, KilnError, OutOfMemory
from kiln.model.run import CellState
from kiln.pipeline.failures import as_told, end_of_cell, error_from


def test_a_failure_comes_back_as_it_was_told() -> None:
    error = DiskFull("full", why="of logs", hint="remove some")
    told = error_from(as_told(error))
    assert (type(told), told.what, told.why, told.hint) == (DiskFull, "full", "of logs", "remove some")


def test_the_step_in_which_it_came_up_stands_first() -> None:
    assert error_from(as_told(BuildFailed("no luck"), step="compile")).what == "compile: no luck"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (BuildFailed("x"), CellState.FAILED),
        (OutOfMemory("x"), CellState.OUT_OF_MEMORY),
        (DiskFull("x"), CellState.DISK_FULL),
        (AlreadyRunning("x"), CellState.ELSEWHERE),
    ],
)
def test_what_ended_a_cell_decides_its_state(error: KilnError, state: CellState) -> None:
    assert end_of_cell(error)["state"] == state.value
