"""The folders of builds, below build_artifacts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.bazel.cache import Caches
from kiln.channel import Channel

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.feedstock import Feedstock


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where builds keep what they make, remember and say; the folder itself is a channel of what is finished.

    A ``rehearsal`` has places of its own for all but the memory and the logs.
    """

    root: Path
    rehearsal: bool = False

    @classmethod
    def of(cls, feedstock: Feedstock, *, rehearsal: bool = False) -> Layout:
        """Return the folders of a feedstock."""
        return cls(root=feedstock.artifacts, rehearsal=rehearsal)

    @property
    def channel(self) -> Channel:
        """The finished packages."""
        return Channel(root=self.root)

    @property
    def ledger(self) -> Path:
        """The memory of all runs."""
        return self.root / "ledger.sqlite"

    @property
    def reserve(self) -> Path:
        """Room on the disk for the ledger, should a build fill it."""
        return self.root / ".reserve"

    @property
    def cache(self) -> Path:
        """Fetched packages, shared by all cells and runs."""
        return self.root / "cache"

    @property
    def engines(self) -> Path:
        """The engine that is lent to images that have none, a folder for each Python."""
        return self.root / "engines"

    @property
    def compile_caches(self) -> Caches:
        """Bazel's caches, one for each key."""
        return Caches(root=self.root / "compile-cache")

    def lock(self, name: str) -> Path:
        """Held by the one process that builds a cell, or changes the channel."""
        return self.root / "locks" / f"{'rehearsal-' if self.rehearsal else ''}{name}.lock"

    def work(self, config: str) -> Path:
        """Where a cell is built; gone once it is finished, but for a rehearsal's, which has its channel there."""
        return self.root / ("rehearsal" if self.rehearsal else "work") / config

    def job(self, config: str) -> Path:
        """What a cell's process is told, for as long as it takes to read."""
        return self.work(config).with_name(f"{config}.job.json")

    def log(self, run: int, config: str) -> Path:
        """What a cell's build said in a run."""
        return self.root / "logs" / f"{run:04d}" / f"{config}.log"

    def canary(self, config: str) -> Path:
        """The file that conda-forge's scripts look for after a build."""
        return self.root / f"conda-forge-build-done-{config}"
