"""Failures of py-rattler's process, as JSON values between the processes and as errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln import errors, files
from kiln.errors import KilnError, LimitExceeded
from kiln.rattler_process.limit_settings import doubled_size_text, limit_increase_hint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.model.channel_reading_and_install_limits import Limits


def out_of_memory_error(bounds: Limits) -> LimitExceeded:
    """Return the error of a process that needs more memory than it may have."""
    return LimitExceeded(
        f"reading the channel or its packages needs more than {files.human_readable_size(bounds.memory)} of memory",
        why="an index or a package is larger than any real one, or made to fill the memory",
        hint=limit_increase_hint(f"memory={doubled_size_text(bounds.memory)}"),
    )


def failure_to_json(error: BaseException) -> dict[str, Any]:
    """Return a failure as JSON values."""
    if isinstance(error, KilnError):
        return {"kind": type(error).__name__, "what": error.what, "why": error.why, "hint": error.hint}
    if isinstance(error, OSError) and error.errno is not None:
        return {"kind": "OSError", "errno": error.errno, "text": error.strerror, "file": error.filename}
    return {"kind": "Exception", "what": repr(error)}


def failure_from_json(data: Mapping[str, Any]) -> Exception:
    """Return the failure of JSON values."""
    if data["kind"] == "OSError":
        return OSError(data["errno"], data["text"], data["file"])
    if data["kind"] == "Exception":
        return RuntimeError(data["what"])
    kind: type[KilnError] = getattr(errors, data["kind"])
    return kind(data["what"], why=data["why"], hint=data["hint"])
