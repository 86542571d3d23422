"""The modules of kiln; tests loop over them, since a test for each costs more."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "kiln"
FILES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


def name_of(file: Path) -> str:
    """Return the path of a module below ``kiln/``."""
    return file.relative_to(PACKAGE).as_posix()
