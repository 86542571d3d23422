"""The structures of Windows' functions, which other systems can define, too."""

from __future__ import annotations

import ctypes

from kiln.operating_system import windows_api


def test_windows_structures_have_their_documented_sizes() -> None:
    sizes = [
        ctypes.sizeof(kind)
        for kind in (
            windows_api.JobBasicLimits,
            windows_api.JobExtendedLimits,
            windows_api.ProcessMemoryCounters,
            windows_api.MemoryStatus,
        )
    ]
    assert sizes == [64, 144, 80, 64]  # of 64-bit Windows
