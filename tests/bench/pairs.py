"""Pairs of commands started at the same moment on one feedstock: how many of them leave what they must."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests import pairs

if TYPE_CHECKING:
    from tests.bench.timing import Row

NUMBER = 16  # of each of the seven kinds


def rows() -> list[Row]:
    """Run all pairs; what is wrong with one is printed."""
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as scratch:
        folder = Path(scratch) / "feedstock"
        expected = pairs.undisturbed(folder)
        return [row(pair, folder, expected) for pair in pairs.PAIRS]


def row(pair: pairs.Pair, folder: Path, expected: dict[str, str]) -> Row:
    """Return how many pairs of a kind are without a fault."""
    result = list(pairs.trial(pair, folder, NUMBER, expected))
    for fault in filter(None, result):
        print("\n".join((f"{pair.name}:", *fault)), file=sys.stderr)
    return (f"at once: {pair.name}", f"{sum(not item for item in result)} of {NUMBER}", f"{NUMBER} of {NUMBER}")
