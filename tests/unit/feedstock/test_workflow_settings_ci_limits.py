"""Limits of CI services are data, each with a page that says so."""

from __future__ import annotations

from kiln.base import files
from kiln.feedstock import workflow_settings
from kiln.feedstock.workflow_settings import GITHUB, MINUTES


def test_each_limit_has_a_source() -> None:
    rows = files.csv_rows(workflow_settings.TABLE)
    assert rows
    assert all(int(row["value"]) > 0 and row["unit"] and row["source"].startswith("https://") for row in rows)


def test_a_job_lasts_as_long_as_the_service_allows() -> None:
    assert workflow_settings.limit_of_service(GITHUB, "job minutes").value == MINUTES
