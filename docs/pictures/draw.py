"""Draw the README's pictures from this feedstock's latest run: ``python docs/pictures/draw.py``, after a rehearsal."""

from __future__ import annotations

import argparse
import html
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kiln.cli.runs import recorded_run, variants_of_existing_configs  # noqa: E402
from kiln.recipe import feedstock as recipe_feedstock  # noqa: E402
from kiln.recipe.variants.space import config_labels  # noqa: E402
from kiln.run.report import page, text  # noqa: E402
from kiln.run.view import live  # noqa: E402
from kiln.run.view.state import RunState  # noqa: E402

if TYPE_CHECKING:
    from kiln.state.results import MatrixReport

WIDTH, HEIGHT = 1100, 900  # of the page
COLUMNS = 100
LINE, COLUMN, MARGIN = 19, 7.83, 20  # pixels of a terminal
NAME = "tensorflow-feedstock"
COLORS = {
    "light": {"": "#1f2328", "1": "#1f2328", "2": "#59636e", "32": "#116329", "paper": "#ffffff", "line": "#d1d9e0"},
    "dark": {"": "#e6edf3", "1": "#e6edf3", "2": "#9198a1", "32": "#7ee787", "paper": "#0d1117", "line": "#3d444d"},
}
SPACES = {"body": "http://www.w3.org/1999/xhtml", "svg": "http://www.w3.org/2000/svg"}
VOID = {"br", "input", "link", "meta"}
SHOWN = {"failures", "time", "packages"}  # the sections that fit


class Body(HTMLParser):
    """The body of a page as XML, with the sections that are shown."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._is_body, self._hidden = False, 0
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element of a section that is shown."""
        self._is_body |= tag == "body"
        values = dict(attrs)
        if self._hidden or (tag == "section" and values.get("aria-labelledby") not in SHOWN):
            self._hidden += tag == "section"
        elif self._is_body:
            space = {"xmlns": SPACES[tag]} if tag in SPACES else {}
            words = (f' {name}="{html.escape(value or name)}"' for name, value in {**space, **values}.items())
            self.parts.append(f"<{tag}{''.join(words)}{'/' if tag in VOID else ''}>")

    def handle_endtag(self, tag: str) -> None:
        """End an element that was kept."""
        if self._hidden:
            self._hidden -= tag == "section"
        elif self._is_body and tag != "html":
            self.parts.append(f"</{tag}>")
            self._is_body = tag != "body"

    def handle_data(self, data: str) -> None:
        """Keep text of a section that is shown."""
        if self._is_body and not self._hidden:
            self.parts.append(html.escape(data))


def page_picture(source: str, theme: str) -> str:
    """Return the upper part of a page as a picture: its own elements and style, in one theme."""
    style = re.search(r"<style>(.*?)</style>", source, re.DOTALL)
    assert style
    rules = re.sub(r"@media (?:\(max-width|print).*?\n}\n", "", style[1], flags=re.DOTALL)
    dark = re.compile(r"@media \(prefers-color-scheme: dark\) \{(.*?\n)}\n", re.DOTALL)
    rules = dark.sub(r"\1" if theme == "dark" else "", rules)
    rules = rules.replace("color-scheme: light dark", f"color-scheme: {theme}")
    body = "".join(Body(source).parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">
<title>The page of a run</title>
<style>{html.escape(rules, quote=False)}</style>
<rect width="100%" height="100%" rx="8" fill="{COLORS[theme]["paper"]}" stroke="{COLORS[theme]["line"]}"/>
<foreignObject x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}">{body}</foreignObject>
</svg>
"""


def terminal_lines(report: MatrixReport, labels: dict[str, str]) -> list[live.Line]:
    """Return what a terminal shows of a run: the command, the last frame, the packages."""
    state = RunState(labels)
    state.set_report(report)
    frame = live.frame_lines(state, now=report.finished or report.started, width=COLUMNS, height=None)
    result = text.built_packages_text(report, COLUMNS, env={"PATH": ""}).replace(str(ROOT), f"~/{NAME}")
    result = re.sub(r"file:///?~", "~", result)
    starts = ((line, at) for line in result.splitlines() for at in range(0, len(line) or 1, COLUMNS))
    folded = (line[at : at + COLUMNS] for line, at in starts)
    return [(("$ ", "2"), (f"python {report.command}", "1")), *frame, *(((line, ""),) for line in folded)]


def terminal_picture(lines: list[live.Line], theme: str) -> str:
    """Return lines with styles as a picture, in one theme."""
    colors = COLORS[theme]
    rows = []
    for number, line in enumerate(lines):
        column, spans = 0, []
        for words, style in line:
            weight = ' font-weight="600"' if style == "1" else ""
            x = MARGIN + column * COLUMN
            spans.append(
                f'<tspan x="{x:.1f}" textLength="{len(words) * COLUMN:.1f}" fill="{colors[style]}"{weight}>'
                f"{html.escape(words)}</tspan>"
            )
            column += len(words)
        rows.append(f'<text xml:space="preserve" y="{MARGIN + LINE * (number + 0.8):.1f}">{"".join(spans)}</text>')
    width, height = round(2 * MARGIN + COLUMNS * COLUMN), 2 * MARGIN + LINE * len(lines)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<title>A run on a terminal</title>
<rect width="100%" height="100%" rx="8" fill="{colors["paper"]}" stroke="{colors["line"]}"/>
<g font-family="ui-monospace, 'SF Mono', 'DejaVu Sans Mono', Menlo, monospace" font-size="13">
{chr(10).join(rows)}
</g>
</svg>
"""


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=int, help="the run to draw (default: the latest)")
    found = recipe_feedstock.load(ROOT)
    report = recorded_run(found, parser.parse_args().run)
    variants = variants_of_existing_configs(found, (config.config for config in report.configs))
    labels = config_labels([config.config for config in report.configs], variants)
    report = replace(report, machine=report.machine.partition(", ")[2] or report.machine)  # without the host's name
    source = page.run_page_html(report, variants, name=NAME, folder=ROOT)
    for theme in COLORS:
        terminal = terminal_picture(terminal_lines(report, labels), theme)
        for name, picture in (("page", page_picture(source, theme)), ("terminal", terminal)):
            Path(__file__).with_name(f"{name}-{theme}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
