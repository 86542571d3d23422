"""The history of a ledger's configs, which kiln writes and does not read."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

from kiln.model.run import ConfigState

if TYPE_CHECKING:
    from pathlib import Path


def config_state_changes(path: Path, run: int) -> list[tuple[str, ConfigState]]:
    """Return every change of a run in order: the config, and its new state."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT config, state FROM change WHERE run = ? ORDER BY id", (run,)).fetchall()
    return [(config, ConfigState(state)) for config, state in rows]
