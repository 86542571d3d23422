"""A run over the matrix: what became of each cell, when, on what, and at what cost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.artifact import PackageReport, StepReport


class CellState(str, Enum):
    """What a cell is doing, or what became of it; ``ELSEWHERE`` is a cell that another process is building."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FOUND = "found"
    FAILED = "failed"
    OUT_OF_MEMORY = "out of memory"
    DISK_FULL = "disk full"
    INTERRUPTED = "interrupted"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRun:
    """One cell of a run: times are seconds since the epoch, durations in seconds, ``peak_memory`` in bytes.

    ``started`` is None for a cell that waits or was found finished; ``group`` is what shares a cache, such as
    ``cuda12.9``, whose first cell is its ``leader``; ``machine`` is that of the fleet which builds it, if one does;
    ``reason`` says why it failed or why it was not repeated.
    """

    config: str
    state: CellState
    group: str
    leader: bool = False
    machine: str = ""
    started: float | None = None
    finished: float | None = None
    estimate: float | None = None
    peak_memory: int | None = None
    log: Path | None = None
    reason: str = ""
    steps: tuple[StepReport, ...] = ()
    packages: tuple[PackageReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixReport:
    """One run: ``finished`` is None while it goes on, or when it was killed; ``rehearsal`` when it made no release."""

    run: int
    command: str
    started: float
    finished: float | None
    machine: str
    cores: int
    jobs: int
    engine: str
    container: str
    image: str | None = None
    rehearsal: bool = False
    cells: tuple[CellRun, ...] = ()
