"""A run as one web page that needs nothing else: no script, no network, no other file.

What stands in a run (reasons, names of packages, ends of logs) comes from builds and is not trusted: the template
escapes all of it, and the page's own policy forbids scripts and anything from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from kiln import files
from kiln.console import BAD, SIGNS, clock, counted, duration, one_line
from kiln.report import totals
from kiln.report.chart import chart
from kiln.report.grid import grid
from kiln.report.tail import cut, tail
from kiln.variants.axes import labels

if TYPE_CHECKING:
    from jinja2 import Environment

    from kiln.model.run import CellRun, MatrixReport
    from kiln.variants.axes import Variants

HERE = Path(__file__).parent
TAILS = 24  # failed cells whose logs' ends are shown; the others have a link
LONGEST = 4000  # characters of a reason


def as_html(report: MatrixReport, variants: Variants, *, name: str, folder: Path, now: float | None = None) -> str:
    """Return a run as a page.

    ``name`` is the feedstock's, ``folder`` where the page will lie, from where the links to logs lead; ``now`` is the
    time of writing in seconds since the epoch.
    """
    from markupsafe import Markup

    moment = time.time() if now is None else now
    style = (HERE / "page.css").read_text(encoding="utf-8")
    environment = _environment(folder, totals.last_moment(report, moment))
    return environment.get_template("page.html.j2").render(
        name=name,
        report=report,
        cells=report.cells,
        labels=labels([cell.config for cell in report.cells], variants),
        numbers={cell.config: number for number, cell in enumerate(report.cells, 1)},
        of={cell.config: cell for cell in report.cells},
        grid=grid([cell.config for cell in report.cells], variants),
        chart=chart(report, moment),
        failures=_failures(report),
        figures=_figures(report, moment),
        goes_on=totals.goes_on(report),
        written=moment,
        style=Markup(style),  # noqa: S704 - it is a file of ours
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


def _environment(folder: Path, end: float) -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"SIGNS": SIGNS, "totals": totals, "end": end}
    environment.filters |= {
        "clean": lambda text: cut(one_line(str(text))),
        "reason": _reason,
        "clock": clock,
        "duration": duration,
        "brief": _brief,
        "size": files.size_text,
        "moment": _moment,
        "kind": lambda state: state.name.lower().replace("_", "-"),
        "tail": tail,
        "href": lambda path: _href(path, folder),
        "there": lambda path: path is not None and path.is_file(),
    }
    return environment


def _figures(report: MatrixReport, now: float) -> list[tuple[str, str, str]]:
    """The figures at the top of the page: what, how much, and a word more."""
    end = totals.last_moment(report, now)
    whole = end - report.started
    work = sum(totals.took(cell, end) or 0.0 for cell in report.cells)
    packages = [package for cell in report.cells for package in cell.packages]
    peak = max((cell.peak_memory or 0 for cell in report.cells), default=0)
    tested = totals.tests(packages)
    slots = f"{report.jobs} at a time" if report.jobs > 1 else "one at a time"
    return [
        ("cells", str(len(report.cells)), _unbroken(counted(cell.state for cell in report.cells))),
        ("so far" if totals.goes_on(report) else "took", _brief(whole), slots),
        ("work", _brief(work), f"{work / whole:.1f} cells at once on average" if whole > 0 else ""),
        ("peak memory", files.size_text(peak) if peak else "?", "of one cell" if peak else "not measured"),
        ("packages", str(len(packages)), files.size_text(totals.size(packages))),
        ("tests", str(tested.passed), f"of {tested.run} tested packages pass"),
    ]


def _failures(report: MatrixReport) -> list[tuple[CellRun, bool]]:
    """The cells that went wrong, and for each whether the end of its log is shown."""
    bad = [cell for cell in report.cells if cell.state in BAD]
    return [(cell, index < TAILS) for index, cell in enumerate(bad)]


def _reason(text: str) -> str:
    """A reason of several lines, harmless and bounded."""
    lines = [
        one_line(line.expandtabs(4)) if not line[:1].isspace() else "  " + one_line(line) for line in text.splitlines()
    ]
    return cut("\n".join(lines), LONGEST)


def _brief(seconds: float) -> str:
    """A time to a place with little room: ``12 s``, ``49 min``, ``3 h 06``."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d}"


def _unbroken(counts: str) -> str:
    """Counts that break between lines only after a comma."""
    return ", ".join(count.replace(" ", "\N{NO-BREAK SPACE}") for count in counts.split(", "))


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _href(path: Path, folder: Path) -> str:
    """A relative link from the page; a name cannot pass for a scheme or a host."""
    return re.sub(r"^(?!\.)", "./", quote(os.path.relpath(path, folder)))
