"""A run is shown as its surroundings allow."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from kiln.cli.view import add_to_summary, view
from kiln.console import GitHubView, LiveView, PlainView
from tests import runs

if TYPE_CHECKING:
    from pathlib import Path


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "kind"),
    [
        (Terminal(), {"TERM": "xterm"}, LiveView),
        (Terminal(), {"TERM": "dumb"}, PlainView),
        (Terminal(), {}, PlainView),
        (io.StringIO(), {"TERM": "xterm"}, PlainView),
        (io.StringIO(), {"GITHUB_ACTIONS": "true"}, GitHubView),
        (io.StringIO(), {"GITHUB_ACTIONS": "false"}, PlainView),
    ],
)
def test_the_view_fits_its_surroundings(stream: io.StringIO, environment: dict[str, str], kind: type) -> None:
    assert type(view(stream, environment, {})) is kind


def test_the_table_is_added_to_what_the_job_has_said_already(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n\n")
    variants = runs.variants(("None",), ("3.10",))
    add_to_summary(runs.worked_through(variants), variants, {"GITHUB_STEP_SUMMARY": str(summary)})
    assert summary.read_text().startswith("before\n\n### run 7: 1 done in ")
    add_to_summary(runs.worked_through(variants), variants, {})
