"""The paths of programs and packages in a virtual environment, and of the program ``kiln``; see Python's venv."""

from __future__ import annotations

from pathlib import Path

PYTHON = Path("bin", "python")
PROGRAM = Path("bin", "kiln")
# Without -I, Python would import a folder kiln of the current directory, which may be another's checkout.
PROGRAM_TEXT = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec "$here/python" -I -m kiln "$@"
"""
ROOT_FROM_PACKAGES = "../../../.."


def site_packages(folder: Path) -> Path:
    """Return the folder of an environment's packages."""
    return next(folder.glob("lib/*/site-packages"))
