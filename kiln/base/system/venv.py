"""The paths of programs and packages in a virtual environment, and of the program ``kiln``; see Python's venv."""

from __future__ import annotations

import sys
from pathlib import Path

# Without -I, Python would import a folder kiln of the current directory, which may be another's checkout.
if sys.platform == "win32":
    PROGRAMS = Path("Scripts")
    PYTHON = PROGRAMS / "python.exe"
    PROGRAM = PROGRAMS / "kiln.cmd"
    PROGRAM_TEXT = '@"%~dp0python.exe" -I -m kiln %*\r\n'
    ROOT_FROM_PACKAGES = "../../.."

    def site_packages(folder: Path) -> Path:
        """Return the folder of an environment's packages."""
        return folder / "Lib" / "site-packages"

else:
    PROGRAMS = Path("bin")
    PYTHON = PROGRAMS / "python"
    PROGRAM = PROGRAMS / "kiln"
    PROGRAM_TEXT = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec "$here/python" -I -m kiln "$@"
"""
    ROOT_FROM_PACKAGES = "../../../.."

    def site_packages(folder: Path) -> Path:
        """Return the folder of an environment's packages."""
        return next(folder.glob("lib/*/site-packages"))
