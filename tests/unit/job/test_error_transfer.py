"""A failure arrives in another process as it was raised, and decides what the config's state is."""

from __future__ import annotations

import pytest

from kiln.errors import AlreadyRunning, BuildFailed, DiskFull, KilnError, OutOfMemory
from kiln.job.error_transfer import error_as_json, error_from, failed_config_result
from kiln.model.run import ConfigState


def test_an_error_survives_json() -> None:
    error = DiskFull("full", why="of logs", hint="remove some")
    told = error_from(error_as_json(error))
    assert (type(told), told.what, told.why, told.hint) == (DiskFull, "full", "of logs", "remove some")


def test_the_step_in_which_it_came_up_stands_first() -> None:
    assert error_from(error_as_json(BuildFailed("no luck"), step="compile")).what == "compile: no luck"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (BuildFailed("x"), ConfigState.FAILED),
        (OutOfMemory("x"), ConfigState.OUT_OF_MEMORY),
        (DiskFull("x"), ConfigState.DISK_FULL),
        (AlreadyRunning("x"), ConfigState.LOCKED),
    ],
)
def test_what_ended_a_config_decides_its_state(error: KilnError, state: ConfigState) -> None:
    assert failed_config_result(error)["state"] == state.value
