"""Send errors from one process of a run to the next, and map each to a config's state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln import errors
from kiln.errors import AlreadyRunning, KilnError
from kiln.model.run import ConfigState

if TYPE_CHECKING:
    from collections.abc import Mapping

STATES = {
    "OutOfMemory": ConfigState.OUT_OF_MEMORY,
    "DiskFull": ConfigState.DISK_FULL,
    "AlreadyRunning": ConfigState.LOCKED,
    "BudgetSpent": ConfigState.INTERRUPTED,
}


def error_as_json(error: KilnError, *, step: str | None = None) -> dict[str, Any]:
    """Return an error as JSON values, with the step in which it occurred, if known."""
    return {
        "type": type(error).__name__,
        "what": str(error.what),
        "why": error.why,
        "hint": error.hint,
        **({"step": step} if step else {}),
    }


def error_from(fields: Mapping[str, str]) -> KilnError:
    """Return the error that another process reported, with its step in front."""
    kind: type[KilnError] = getattr(errors, fields["type"])
    step = f"{fields['step']}: " if fields.get("step") else ""
    return kind(f"{step}{fields['what']}", why=fields["why"], hint=fields["hint"])


def failed_config_result(error: KilnError) -> dict[str, Any]:
    """Return the result of a failed config, as JSON values."""
    reason = f"another process builds it: {error.what}" if isinstance(error, AlreadyRunning) else error.what
    state = STATES.get(type(error).__name__, ConfigState.FAILED)
    return {"state": state.value, "reason": reason, "error": error_as_json(error)}
