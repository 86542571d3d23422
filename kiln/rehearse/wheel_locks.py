"""The locked wheels of rehearsals: exact files with sizes and hashes, recorded in ``locks/``.

``missing.csv`` has the parts of outputs that upstream's wheel lacks, so that a rehearsal cannot make them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files
from kiln.errors import UnsupportedPython, VariantFault
from kiln.rehearse.plan_types import LockedWheel, RehearsalPlan

if TYPE_CHECKING:
    from collections.abc import Iterable

LOCKS = Path(__file__).parent / "locks"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
UPSTREAM = frozenset({"tensorflow", "tensorflow-cpu"})
GAPS = Path(__file__).with_name("missing.csv")


def cuda_versions() -> tuple[str, ...]:
    """Return the CUDA versions that can be rehearsed, such as ``12.5``."""
    return tuple(sorted(file.stem.removeprefix("cuda") for file in LOCKS.glob("cuda*.json")))


@cache
def read_lock(lock: str) -> tuple[LockedWheel, ...]:
    """Return the wheels of a lock, ``cpu`` or ``cuda12.9``."""
    rows = json.loads((LOCKS / f"{lock}.json").read_text(encoding="utf-8"))["wheels"]
    return tuple(LockedWheel(**{**row, "pythons": tuple(row["pythons"])}) for row in rows)


def has_upstream_wheel(outputs: Iterable[str]) -> bool:
    """Return whether a wheel of the locks replaces the compile of outputs with these names."""
    return not UPSTREAM.isdisjoint(outputs)


def plan_from_locks(*, python: str, cuda: str | None = None) -> RehearsalPlan:
    """Return the wheels of a rehearsal for a Python, ``3.11``, and a CUDA version, ``12.9``, or None.

    Raises UnsupportedPython and VariantFault for versions without a lock.
    """
    if python not in PYTHONS:
        raise UnsupportedPython(
            f"a rehearsal has no wheels for Python {python}",
            hint=f"use Python {', '.join(PYTHONS[:-1])} or {PYTHONS[-1]}",
        )
    if cuda is not None and cuda not in cuda_versions():
        raise VariantFault(
            f"a rehearsal has no wheels for CUDA {cuda}",
            hint=f"rehearse a config with CUDA {' or '.join(cuda_versions())}, or one without CUDA",
        )
    wheels = [wheel for wheel in read_lock(f"cuda{cuda}" if cuda else "cpu") if python in wheel.pythons]
    (upstream,) = (wheel for wheel in wheels if wheel.name in UPSTREAM)
    return RehearsalPlan(
        python=python,
        cuda=cuda,
        upstream=upstream,
        dependencies=tuple(wheel for wheel in wheels if wheel is not upstream),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamWheelGap:
    """A row of missing.csv: what an output lacks, and whether a rehearsal makes the output without it."""

    output: str
    lacks: str
    is_made: bool
    source: str

    @property
    def note(self) -> str:
        """The note for the user."""
        consequence = f"{self.output} is made without it" if self.is_made else f"{self.output} is not made"
        return f"upstream's wheel has no {self.lacks}: {consequence}"


@cache
def known_upstream_wheel_gaps() -> tuple[UpstreamWheelGap, ...]:
    """Return the rows of missing.csv."""
    return tuple(
        UpstreamWheelGap(output=row["output"], lacks=row["lacks"], is_made=row["made"] == "yes", source=row["source"])
        for row in files.csv_rows(GAPS)
    )


def upstream_wheel_gaps(names: Iterable[str]) -> tuple[UpstreamWheelGap, ...]:
    """Return the gaps of outputs, by the outputs' names."""
    names = frozenset(names)
    return tuple(gap for gap in known_upstream_wheel_gaps() if gap.output in names)
