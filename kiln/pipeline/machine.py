"""What a run takes from the machine that it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """``environment`` are the run's variables, free of secrets.

    ``python`` is the interpreter that a rehearsal without CONFIG is for.
    """

    environment: Mapping[str, str]
    python: Path
