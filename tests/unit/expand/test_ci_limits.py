"""Limits of CI services are data, each with a page that says so."""

from __future__ import annotations

from kiln import files
from kiln.expand import ci_limits
from kiln.expand.actions_settings import GITHUB, MINUTES


def test_each_limit_has_a_source() -> None:
    rows = files.csv_rows(ci_limits.TABLE)
    assert rows
    assert all(int(row["value"]) > 0 and row["unit"] and row["source"].startswith("https://") for row in rows)


def test_a_job_lasts_as_long_as_the_service_allows() -> None:
    assert ci_limits.limit_of_service(GITHUB, "job minutes").value == MINUTES
