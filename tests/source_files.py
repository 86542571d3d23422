"""The modules of kiln, each parsed once in a process; tests loop over them, since a test for each costs more."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "kiln"
FILES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


def name_of(file: Path) -> str:
    """Return the path of a module below ``kiln/``."""
    return file.relative_to(PACKAGE).as_posix()


@functools.cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module's syntax tree, the module first."""
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
