"""A rehearsal, next to the same packages made by the engine alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.bench.timing import ROOT, folder_of_builds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.bench.timing import Row


def rows() -> list[Row]:
    """Return a rehearsal from wheels in pip's cache, next to the bare calls of the engine, and then once more."""
    with scratch_feedstock() as feedstock:
        rehearse(feedstock)  # fills pip's cache, and the file system's
        shutil.rmtree(feedstock / "build_artifacts")
        first, tests = rehearse(feedstock)
        again, _ = rehearse(feedstock)
        bare = bare_engine(feedstock)
    return [
        ("rehearsal, all of it", f"{first:.1f} s", ""),
        ("  the tests' own run", f"{tests:.1f} s", ""),
        ("  everything else", f"{first - tests:.1f} s", f"{1.5 * bare:.1f} s"),
        ("bare py-rattler-build and py-rattler", f"{bare:.1f} s", ""),
        ("  everything else : bare", f"{(first - tests) / bare:.2f}", "1.5"),
        ("the same rehearsal again", f"{again:.1f} s", "10 s"),
    ]


def rehearse(feedstock: Path) -> tuple[float, float]:
    """Rehearse in a process of its own; returns its whole time and the tests' part of it, in seconds."""
    argv = (sys.executable, "-m", "kiln", "-C", str(feedstock), "build", "--rehearse", "--json")
    began = time.monotonic()
    ended = subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    (config,) = json.loads(ended.stdout)["configs"]
    return time.monotonic() - began, sum(package["tests"]["seconds"] for package in config["packages"])


def bare_engine(feedstock: Path) -> float:
    """Make and install the same packages by calls of the engine alone, in a process of its own."""
    began = time.monotonic()
    subprocess.run((sys.executable, "-m", "tests.bench.bare", str(feedstock)), cwd=ROOT, check=True)
    return time.monotonic() - began


@contextmanager
def scratch_feedstock() -> Iterator[Path]:
    """Copy this feedstock, without what was built in it."""
    with folder_of_builds() as folder:
        for part in ("recipe", ".ci_support"):
            shutil.copytree(ROOT / part, folder / part)
        shutil.copy2(ROOT / "conda-forge.yml", folder)
        yield folder
