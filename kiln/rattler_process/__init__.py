"""A process in which py-rattler reads channels and packages, under limits on time, memory and disk space.

The compiled code that decodes a channel's files ignores deadlines, and ends its whole process when memory is refused.
So it runs in a separate process, which the kernel and a watchdog hold to the limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.lazy_exports import lazy_exports
from kiln.rattler_process.limit_settings import VARIABLE, current_limits, environment_limits, override_limits

if TYPE_CHECKING:
    from kiln.rattler_process.client import run_operation

__all__ = ["VARIABLE", "current_limits", "environment_limits", "override_limits", "run_operation"]

__getattr__ = lazy_exports(__name__, {"client": "run_operation"})  # the process itself needs no client
