"""What a compile by Bazel tells while it goes on, and when it is over."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a compile is: actions ``done`` of ``total``, which is None until Bazel has said it, and grows at first.

    ``current`` is an action under way, ``left`` an estimate in seconds. ``stalled`` says since when nothing has
    happened and what is at work; it is empty while all goes well.
    """

    done: int
    total: int | None = None
    current: str = ""
    left: float | None = None
    stalled: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileReport:
    """What a compile's actions came from, by Bazel's own count.

    ``hits`` were found in a cache, ``misses`` were run, ``internal`` are Bazel's own, which need neither. ``seconds``
    is the time by the clock, ``work`` that of all actions together, None where Bazel kept no profile.
    """

    hits: int
    misses: int
    internal: int
    seconds: float
    work: float | None = None

    @property
    def share(self) -> float:
        """The part of the actions that were found in a cache, of those that could be; 1.0 when there was none."""
        sought = self.hits + self.misses
        return self.hits / sought if sought else 1.0

    def __str__(self) -> str:
        internal = f", {self.internal:,} internal" if self.internal else ""
        return f"{self.hits + self.misses:,} actions: {self.hits:,} from the cache, {self.misses:,} run{internal}"
