"""The structures of Windows' functions, which other systems can define, too."""

from __future__ import annotations

import ctypes

from kiln.base.system import windows


def test_windows_structures_have_their_documented_sizes() -> None:
    sizes = [
        ctypes.sizeof(kind)
        for kind in (
            windows.JobBasicLimits,
            windows.JobExtendedLimits,
            windows.ProcessMemoryCounters,
            windows.MemoryStatus,
        )
    ]
    assert sizes == [64, 144, 80, 64]  # of 64-bit Windows
