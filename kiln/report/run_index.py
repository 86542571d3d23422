"""The index of all runs as a web page in the folder of their pages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kiln import __version__
from kiln.console.progress_lines import state_count_text
from kiln.report import template_environment, totals
from kiln.report.page import page_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kiln.model.run import MatrixReport


def index_as_html(
    reports: Sequence[MatrixReport], *, name: str, folder: Path, omitted: int = 0, now: float | None = None
) -> str:
    """Return the index of runs, the latest first; a run is a link if its page is in the folder.

    ``name`` is the feedstock's, ``omitted`` the number of earlier runs, ``now`` the time of writing in seconds since
    the epoch.
    """
    moment = time.time() if now is None else now
    rows = [
        (report, totals.last_moment(report, moment) - report.started, state_count_text(report.configs))
        for report in reports
    ]
    return template_environment.render(
        "index.html.j2",
        folder,
        name=name,
        rows=rows,
        page_of=lambda run: folder / page_name(run),
        omitted=omitted,
        written=moment,
        writer=__version__,
    )
