"""The limits of CI services, from a table with a source in each row."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from kiln import files

TABLE = Path(__file__).with_name("ci_limits.csv")


class CiLimit(NamedTuple):
    """A limit of a service: its value, and the unit with the meaning."""

    value: int
    unit: str


@cache
def all_limits() -> dict[tuple[str, str], CiLimit]:
    """Return all limits by service and name."""
    return {(row["service"], row["limit"]): CiLimit(int(row["value"]), row["unit"]) for row in files.csv_rows(TABLE)}


def limit_of_service(service: str, name: str) -> CiLimit:
    """Return a limit of a service."""
    return all_limits()[service, name]
