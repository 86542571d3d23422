"""A process in which py-rattler reads channels and packages, under limits on time, memory and disk space.

The compiled code that decodes a channel's files ignores deadlines, and ends its whole process when memory is refused.
So it runs in a separate process, which the kernel and a watchdog hold to the limits.
"""

from __future__ import annotations

from kiln.rattler_process.client import call
from kiln.rattler_process.process_limits import VARIABLE, limited, limits, limits_of

__all__ = ["VARIABLE", "call", "limited", "limits", "limits_of"]
