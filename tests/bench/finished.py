"""The time to recognize that a matrix of twelve configs, each with a package, is up to date."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING

from tests.bench.timing import build, median
from tests.pairs import feedstock

if TYPE_CHECKING:
    from tests.bench.timing import Row

CONFIGS, MOST = 12, 0.3


def rows() -> list[Row]:
    """Build the matrix, then time the same command again, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
        root = feedstock(Path(folder), ascii_lowercase[:CONFIGS])
        again = partial(build, root, "--all", "--container", "none")
        again()
        took = median(again)
    return [(f"a finished matrix, {CONFIGS} configs", f"{took:.2f} s", f"{MOST} s")]
