"""Names of files that mean something else on this system."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    _DEVICES = frozenset({"CON", "PRN", "AUX", "NUL", *(f"{kind}{n}" for kind in ("COM", "LPT") for n in range(1, 10))})

    def is_special_path(path: str) -> bool:
        """Return whether Windows would write elsewhere than this path says: drives, streams, devices, other separators.

        Source: learn.microsoft.com/windows/win32/fileio/naming-a-file.
        """
        if "\\" in path or ":" in path:
            return True
        parts = [part for part in path.split("/") if part not in {"", ".", ".."}]
        return any(part[-1] in ". " or part.partition(".")[0].rstrip().upper() in _DEVICES for part in parts)

else:

    def is_special_path(path: str) -> bool:  # noqa: ARG001
        """Return False: a path means what it says."""
        return False
