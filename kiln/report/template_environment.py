"""The environment of the web pages' templates: everything is escaped, and links lead to files or to web pages."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kiln import files, git
from kiln.console.progress_text import SIGNS
from kiln.console.text import duration, elapsed_text, unindented_terminal_line
from kiln.report import totals
from kiln.report.tail import cut_to_width, end_of_log

if TYPE_CHECKING:
    from jinja2 import Environment

    from kiln.model.run import MatrixReport

HERE = Path(__file__).parent
LONGEST = 4000  # characters of a reason


def render_page(template: str, folder: Path, **values: Any) -> str:
    """Return a page that is written into a folder, with the style sheet and its hash for the page's policy."""
    from markupsafe import Markup

    style = (HERE / "page.css").read_text(encoding="utf-8")
    page = _jinja_environment().get_template(template)
    return page.render(
        **values,
        folder=folder,
        style=Markup(style),  # noqa: S704 - a trusted file of this package
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


@functools.cache
def _jinja_environment() -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"SIGNS": SIGNS, "totals": totals}
    environment.globals |= {"commit_url": commit_url, "short_commit": git.short_commit}
    environment.filters |= {
        "clean": lambda text: cut_to_width(unindented_terminal_line(str(text))),
        "reason": _reason_text,
        "clock": elapsed_text,
        "duration": duration,
        "short_duration": short_duration,
        "size": files.human_readable_size,
        "moment": lambda seconds: time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds)),
        "kind": lambda state: state.name.lower().replace("_", "-"),
        "tail": end_of_log,
        "href": jinja2.pass_context(lambda page, path: _relative_link(path, page["folder"])),
        "there": lambda path: path is not None and path.is_file(),
        "is_web": is_web_url,
    }
    return environment


def is_web_url(url: str) -> bool:
    """Return whether a text is the address of a web page, without credentials; others become no link."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url
    return is_plain and parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in parts.netloc


def commit_url(report: MatrixReport) -> str:
    """Return the page of a run's commit, as GitHub, GitLab and Forgejo have it; empty where it is unknown."""
    commit = git.base_commit(report.commit)
    url = f"{report.remote_url.rstrip('/').removesuffix('.git')}/commit/{commit}"
    return url if re.fullmatch("[0-9a-f]{7,64}", commit) and is_web_url(report.remote_url) else ""


def short_duration(seconds: float) -> str:
    """Return a short duration: ``12 s``, ``49 min``, ``3 h 06``."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d}"


def _reason_text(text: str) -> str:
    """Return a reason of several lines, escaped and of limited length."""
    lines = [
        unindented_terminal_line(line.expandtabs(4))
        if not line[:1].isspace()
        else "  " + unindented_terminal_line(line)
        for line in text.splitlines()
    ]
    return cut_to_width("\n".join(lines), LONGEST)


def _relative_link(path: Path, folder: Path) -> str:
    """Return a relative link from the page; a name cannot be mistaken for a scheme or a host."""
    return re.sub(r"^(?!\.)", "./", quote(os.path.relpath(path, folder)))
