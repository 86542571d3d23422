"""What a run takes from the machine that it runs on."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """``environment`` are the run's variables, free of secrets.

    ``python`` is the interpreter that a rehearsal without CONFIG is for.
    """

    environment: Mapping[str, str]
    python: Path


def processor() -> str:
    """Return the name that the processor of this machine gives itself."""
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
