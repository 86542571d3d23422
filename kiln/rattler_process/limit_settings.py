"""The limits on py-rattler's process that are in force here: from the environment, or of a block."""

from __future__ import annotations

import contextlib
import contextvars
from typing import TYPE_CHECKING

from kiln.errors import UsageError
from kiln.model.channel_reading_and_install_limits import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE = "KILN_LIMITS"
_limits: contextvars.ContextVar[Limits] = contextvars.ContextVar("limits")


def current_limits() -> Limits:
    """Return the limits in force."""
    return _limits.get(Limits())


def environment_limits(environment: Mapping[str, str]) -> Limits:
    """Return the limits that an environment sets.

    Raises:
        UsageError: when a limit is invalid.
    """
    try:
        return Limits.parse(environment.get(VARIABLE, ""))
    except ValueError as error:
        raise UsageError(f"{VARIABLE}: {error}", hint=f"{VARIABLE}='solve=1h memory=8GB'") from error


@contextlib.contextmanager
def override_limits(new: Limits) -> Iterator[None]:
    """Replace the limits during the block."""
    token = _limits.set(new)
    try:
        yield
    finally:
        _limits.reset(token)


def limit_increase_hint(limit: str) -> str:
    """Return the hint to raise a limit."""
    return f"if you trust the channel, allow more: {VARIABLE}='{limit}'"


def doubled_size_text(size: int) -> str:
    """Return twice a size, in the notation of limits."""
    return f"{2 * size // 10**9}GB" if size >= 10**9 else f"{max(1, 2 * size // 10**6)}MB"
