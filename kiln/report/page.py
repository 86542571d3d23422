"""A run as a self-contained web page, without scripts and other files.

Reasons, names of packages and ends of logs come from builds and are untrusted: the template escapes them, and the
page's content security policy forbids scripts and external resources.
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
from kiln.console import BAD, SIGNS, clock, count_text, duration, one_line
from kiln.report import totals
from kiln.report.chart import chart
from kiln.report.grid import grid
from kiln.report.tail import cut, tail
from kiln.variants.axes import labels

if TYPE_CHECKING:
    from jinja2 import Environment

    from kiln.model.run import ConfigRun, MatrixReport
    from kiln.variants.axes import Variants

HERE = Path(__file__).parent
TAILS = 24  # number of failed configs with the end of their log; the others have a link
LONGEST = 4000  # characters of a reason


def as_html(report: MatrixReport, variants: Variants, *, name: str, folder: Path, now: float | None = None) -> str:
    """Return a run as a page.

    ``name`` is the feedstock's, ``folder`` the page's folder, which links to logs are relative to; ``now`` is the time
    of writing in seconds since the epoch.
    """
    from markupsafe import Markup

    moment = time.time() if now is None else now
    style = (HERE / "page.css").read_text(encoding="utf-8")
    environment = _environment(folder, totals.last_moment(report, moment))
    return environment.get_template("page.html.j2").render(
        name=name,
        report=report,
        configs=report.configs,
        labels=labels([config.config for config in report.configs], variants),
        numbers={config.config: number for number, config in enumerate(report.configs, 1)},
        of={config.config: config for config in report.configs},
        grid=grid([config.config for config in report.configs], variants),
        chart=chart(report, moment),
        failures=_failures(report),
        figures=_figures(report, moment),
        is_running=totals.is_running(report),
        written=moment,
        style=Markup(style),  # noqa: S704 - a trusted file of this package
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
    """Return the figures at the top of the page: title, value and remark."""
    end = totals.last_moment(report, now)
    elapsed = end - report.started
    work = sum(totals.took(config, end) or 0.0 for config in report.configs)
    packages = [package for config in report.configs for package in config.packages]
    peak = max((config.peak_memory or 0 for config in report.configs), default=0)
    tests = totals.tests(packages)
    slots = f"{report.jobs} in parallel" if report.jobs > 1 else "one at a time"
    return [
        ("configs", str(len(report.configs)), _unbroken(count_text(config.state for config in report.configs))),
        ("so far" if totals.is_running(report) else "took", _brief(elapsed), slots),
        ("work", _brief(work), f"{work / elapsed:.1f} configs in parallel on average" if elapsed > 0 else ""),
        ("peak memory", files.size_text(peak) if peak else "?", "of one config" if peak else "not measured"),
        ("packages", str(len(packages)), files.size_text(totals.size(packages))),
        ("tests", str(tests.passed), f"of {tests.run} tested packages pass"),
    ]


def _failures(report: MatrixReport) -> list[tuple[ConfigRun, bool]]:
    """Return the failed configs, each with whether the page shows the end of its log."""
    configs = [config for config in report.configs if config.state in BAD]
    return [(config, index < TAILS) for index, config in enumerate(configs)]


def _reason(text: str) -> str:
    """Return a reason of several lines, escaped and of limited length."""
    lines = [
        one_line(line.expandtabs(4)) if not line[:1].isspace() else "  " + one_line(line) for line in text.splitlines()
    ]
    return cut("\n".join(lines), LONGEST)


def _brief(seconds: float) -> str:
    """Return a short duration: ``12 s``, ``49 min``, ``3 h 06``."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d}"


def _unbroken(counts: str) -> str:
    """Return counts that wrap only after a comma."""
    return ", ".join(count.replace(" ", "\N{NO-BREAK SPACE}") for count in counts.split(", "))


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _href(path: Path, folder: Path) -> str:
    """Return a relative link from the page; a name cannot be mistaken for a scheme or a host."""
    return re.sub(r"^(?!\.)", "./", quote(os.path.relpath(path, folder)))
