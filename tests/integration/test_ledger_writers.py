"""Several processes write to one ledger at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.state.ledger.ledger import Ledger
from tests.unit.state.run_reports import writer

if TYPE_CHECKING:
    from pathlib import Path

import pytest

pytestmark = pytest.mark.sampled


def test_eight_writers_lose_nothing(tmp_path: Path) -> None:
    item = 250
    writers = [writer(tmp_path / "l.sqlite", item) for _ in range(8)]
    first = [int(process.stdout.readline()) for process in writers if process.stdout]
    for process in writers:
        process.communicate()
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert [len(ledger.config_state_changes(number)) for number in first] == [item] * 8
