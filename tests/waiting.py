"""Waiting for what another process does: by looking, with a generous ceiling."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

CEILING = 900.0  # seconds for anything that is waited for: no measure of speed, but the end of what hangs


def until(
    condition: Callable[[], object],
    what: str,
    process: subprocess.Popen[bytes] | subprocess.Popen[str] | None = None,
    *,
    seconds: float = CEILING,
    pause: float = 0.1,
) -> None:
    """Wait for something to become true, while ``process`` runs if there is one."""
    end = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, f"{what}: the process ended before: {process.returncode}"
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(pause)
