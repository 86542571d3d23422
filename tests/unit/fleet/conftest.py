"""Fixtures of the fleet's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def rare_forecasts() -> Iterator[None]:
    """Forecast the cost every ten minutes of a simulated run, and when a config changes, instead of every minute.

    Forecasts took more than half of the time of simulated runs. Each also wakes the event loop, and would hide that
    the loop does not wake by itself when something is due.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kiln.fleet.supervisor.FORECAST", 600.0)
        yield
