"""A rehearsal and an install from its channel, next to the same done by the engine alone."""

from __future__ import annotations

import resource
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
        rehearse = ("-m", "kiln", "-C", str(feedstock), "build", "--rehearse", "--quiet")
        timed(*rehearse)  # fills pip's cache, and the file system's
        shutil.rmtree(feedstock / "build_artifacts")
        first, again, bare = timed(*rehearse), timed(*rehearse), timed("-m", "tests.bench.bare", str(feedstock))
        installs = list(install_rows(feedstock))
    return [
        ("a rehearsal, as long as a person waits", f"{first[0]:.0f} s", "60 s"),
        ("  its processor time", f"{first[1]:.0f} s", "90 s"),
        ("  over that of py-rattler-build and py-rattler, which test nothing", f"{first[1] / bare[1]:.2f}", ""),
        ("  the same again", f"{again[0]:.1f} s", "10 s"),
        *installs,
    ]


def install_rows(feedstock: Path) -> Iterator[Row]:
    """Yield the processor time of an install of tensorflow over py-rattler's, with an empty cache and a filled one."""
    (channel,) = (feedstock / "build_artifacts" / "rehearsal").glob("*/channel")
    url = channel.absolute().as_uri()
    for cache in ("empty", "filled"):
        own, bare = feedstock / f"prefix {cache}", feedstock / f"bare prefix {cache}"
        caches = feedstock / "own cache", feedstock / "bare cache"
        words = ("-m", "kiln", "install", "tensorflow", "-p", str(own), "-c", url, "--cache", str(caches[0]))
        mine = timed(*words)
        theirs = timed("-m", "tests.bench.bare", "install", url, str(bare), str(caches[1]))
        ratio = f"{mine[1] / theirs[1]:.2f}"
        yield f"an install of tensorflow over py-rattler's, the cache {cache}", ratio, "1.2"


def timed(*words: str) -> tuple[float, float]:
    """Run Python in a process of its own; return the seconds that passed, and those of a processor."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run((sys.executable, *words), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextmanager
def scratch_feedstock() -> Iterator[Path]:
    """Copy this feedstock, without what was built in it."""
    with folder_of_builds() as folder:
        for part in ("recipe", ".ci_support"):
            shutil.copytree(ROOT / part, folder / part)
        shutil.copy2(ROOT / "conda-forge.yml", folder)
        yield folder
