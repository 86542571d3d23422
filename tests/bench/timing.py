"""Helpers of all sections: the rows of the table, and calls timed in separate processes."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]

Row = tuple[str, str, str]


def median(call: Callable[[], None], *, rounds: int = 9) -> float:
    """Return the median seconds of some rounds, after one that warms the file system's cache."""
    call()
    return statistics.median(seconds(call) for _ in range(rounds))


def seconds(call: Callable[[], None]) -> float:
    """Return how long one call takes."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


def run(*argv: str) -> None:
    """Run a command that must succeed, its output thrown away."""
    subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def build(root: Path, *words: str) -> None:
    """Run ``kiln build`` on a feedstock and discard its output."""
    argv = (sys.executable, "-m", "kiln", "-C", str(root), "build", *words)
    subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def folder_of_builds() -> Iterator[Path]:
    """Provide a temporary folder on the file system of this clone's builds, where links can be made to them."""
    artifacts = ROOT / "build_artifacts"
    artifacts.mkdir(exist_ok=True)  # a fresh clone has none
    with tempfile.TemporaryDirectory(dir=artifacts, prefix="bench-") as folder:
        yield Path(folder)
