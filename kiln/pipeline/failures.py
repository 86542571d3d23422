"""How failures are told from one process of a run to the next, and what a cell's state is after each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln import errors
from kiln.errors import AlreadyRunning, KilnError
from kiln.model.run import CellState

if TYPE_CHECKING:
    from collections.abc import Mapping

STATES = {
    "OutOfMemory": CellState.OUT_OF_MEMORY,
    "DiskFull": CellState.DISK_FULL,
    "AlreadyRunning": CellState.ELSEWHERE,
}


def as_told(error: KilnError, *, step: str | None = None) -> dict[str, Any]:
    """Return a failure as JSON values, with the step in which it came up where that is known."""
    return {
        "type": type(error).__name__,
        "what": str(error.what),
        "why": error.why,
        "hint": error.hint,
        **({"step": step} if step else {}),
    }


def error_from(told: Mapping[str, str]) -> KilnError:
    """Return the failure that another process told, its step put first."""
    kind: type[KilnError] = getattr(errors, told["type"])
    step = f"{told['step']}: " if told.get("step") else ""
    return kind(f"{step}{told['what']}", why=told["why"], hint=told["hint"])


def end_of_cell(error: KilnError) -> dict[str, Any]:
    """Return what became of a cell that failed, as it is told."""
    reason = f"another process builds it: {error.what}" if isinstance(error, AlreadyRunning) else error.what
    state = STATES.get(type(error).__name__, CellState.FAILED)
    return {"state": state.value, "reason": reason, "error": as_told(error)}
