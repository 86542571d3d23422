"""The properties of the host that a run depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMachine:
    """``environment`` are the run's variables, free of secrets.

    ``python`` is the interpreter for a rehearsal without CONFIG; with ``insists`` the user has named it, and no other
    is used.
    """

    environment: Mapping[str, str]
    python: Path
    insists: bool = False
