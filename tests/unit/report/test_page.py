"""The page of a run holds what matters, trusts nothing, and stays small."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from kiln.model.run import ConfigRun, ConfigState, MatrixReport
from kiln.report import as_html, as_json, as_markdown, matrix_text
from kiln.report.tail import LINES, WIDTH, tail
from tests import runs

if TYPE_CHECKING:
    from pathlib import Path

VARIANTS = runs.variants(("None", "12.5"), ("3.10", "3.11"))
EVIL = (
    "</pre></style><script>alert(1)</script><img src=https://evil.example/x onerror=alert(2)>"
    "\"'&{{ 6*7 }}\x1b[31m\u202e"
)


class Elements(HTMLParser):
    """Every element with its attributes, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(report: MatrixReport, folder: Path, name: str = "feedstock") -> str:
    return as_html(report, VARIANTS, name=name, folder=folder, now=runs.BEGAN + 4 * runs.HOUR)


def everywhere(text: str, log: Path) -> MatrixReport:
    """A run in which all text that comes from elsewhere is this one."""
    report = runs.worked_through(VARIANTS, bad={1: ConfigState.FAILED}, log=log)
    first, second, *others = report.configs
    package = first.packages[0]
    package = replace(
        package,
        artifact=replace(package.artifact, name=text, version=text, build_string=text),
        tests=replace(package.tests, notes=(text,), log=log),
    )
    step = replace(first.steps[0], title=text, notes=(text,))
    configs = (
        replace(first, config=text, group=text, packages=(package,), steps=(step,), reason=text),
        replace(second, reason=text),
        *others,
    )
    words = dict.fromkeys(("command", "machine", "engine", "container", "image"), text)
    return replace(report, configs=configs, **words)  # type: ignore[arg-type]


def test_nothing_of_a_build_becomes_part_of_the_page(tmp_path: Path) -> None:
    log = tmp_path / "javascript:alert(1) <&>.log"
    log.write_text(EVIL * 3)
    page = page_of(everywhere(EVIL, log), tmp_path, name=EVIL)
    elements = Elements(page)
    assert not {"script", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in elements.found}
    assert not any(name.startswith("on") or name == "style" for _, attributes in elements.found for name in attributes)
    assert "<script>alert(1)</script>" in elements.text  # it is shown, as text
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "{{ 6*7 }}" in elements.text


def test_a_page_needs_nothing_but_itself_and_logs_beside_it(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "with space & colon:.log"
    log.parent.mkdir()
    log.write_text("a line\n")
    page = page_of(everywhere("text", log), tmp_path / "reports")
    links = {
        value for _, attributes in Elements(page).found for name, value in attributes.items() if name in {"href", "src"}
    }
    outside = {link for link in links if link and not link.startswith("#")}
    assert outside == {"data:,", "../logs/with%20space%20%26%20colon%3A.log"}
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_every_link_within_the_page_leads_somewhere(tmp_path: Path) -> None:
    elements = Elements(page_of(runs.worked_through(VARIANTS), tmp_path))
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    targets = {value[1:] for _, attributes in elements.found if (value := attributes.get("href") or "").startswith("#")}
    assert targets <= set(ids)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("state", list(ConfigState))
def test_each_state_is_told_by_a_sign_and_a_word(state: ConfigState, tmp_path: Path) -> None:
    from kiln.console import SIGNS

    config = ConfigRun(config="a", state=state, group="", started=runs.BEGAN)
    report = replace(runs.worked_through({}), finished=None, configs=(config,))
    text = Elements(page_of(report, tmp_path)).text
    assert SIGNS[state] in text
    assert state.value in text


@pytest.mark.parametrize(
    ("until", "banner"), [(None, None), (2 * runs.HOUR, "This run is in progress"), (0, "This run is in progress")]
)
def test_a_run_in_progress_has_a_banner(until: float | None, banner: str | None, tmp_path: Path) -> None:
    page = page_of(runs.worked_through(VARIANTS, until=until), tmp_path)
    assert ("is in progress." in page) is (banner is not None)
    assert "was interrupted" not in page


def test_a_killed_run_has_a_banner(tmp_path: Path) -> None:
    report = runs.worked_through(VARIANTS, until=2 * runs.HOUR)
    killed = replace(report, configs=tuple(replace(config, state=ConfigState.INTERRUPTED) for config in report.configs))
    assert "This run was interrupted" in page_of(killed, tmp_path)


def test_a_rehearsal_says_that_it_is_one(tmp_path: Path) -> None:
    run = runs.worked_through(VARIANTS)
    assert "A rehearsal:" not in Elements(page_of(run, tmp_path)).text
    assert "A rehearsal:" in Elements(page_of(replace(run, rehearsal=True), tmp_path)).text


def test_a_log_that_is_gone_is_no_link(tmp_path: Path) -> None:
    page = page_of(runs.worked_through(VARIANTS, log=tmp_path / "gone.log"), tmp_path)
    assert "gone.log" not in page
    assert "log is gone" in page


def test_the_end_of_a_log_is_bounded_whatever_the_log_is(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_bytes(b"\xff\x00" * 1_000_000 + b"x" * 5_000_000 + b"\nlast\r\n")
    assert len(tail(log)) <= LINES * (WIDTH + 1)
    assert tail(log).endswith("last")
    log.write_text("".join(f"line {number}\n" for number in range(1000)))
    assert tail(log).splitlines() == [f"line {number}" for number in range(1000 - LINES, 1000)]


def test_a_link_in_a_logs_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "build.log").symlink_to(tmp_path / "secret")
    assert tail(tmp_path / "build.log") == ""
    assert tail(tmp_path) == ""
    assert tail(tmp_path / "none") == ""


def test_a_page_of_192_failures_stays_small(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text(("&" * 200 + "\n") * 1000)
    variants = runs.variants([f"12.{n}" for n in range(8)], [f"3.{n}" for n in range(6)], [str(n) for n in range(4)])
    report = runs.worked_through(variants, jobs=8, bad=dict.fromkeys(range(192), ConfigState.FAILED), log=log)
    assert len(as_html(report, variants, name="f", folder=tmp_path)) < 1_500_000


def test_markdown_is_a_table_that_a_build_cannot_break() -> None:
    report = runs.worked_through(VARIANTS, bad={1: ConfigState.FAILED})
    configs = (
        replace(report.configs[1], reason="a | b\n<script> `x` [y](https://evil.example) @team"),
        *report.configs[2:],
    )
    shown = as_markdown(replace(report, configs=configs), VARIANTS)
    lines = [line for line in shown.splitlines() if line]
    assert lines[0].startswith("### run 7: 1 failed, 2 done in ")
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[1:]} == {9}
    assert "<script>" not in shown
    assert "](https" not in shown


def test_the_table_for_a_terminal_has_a_line_for_each_config() -> None:
    shown = matrix_text(runs.worked_through(VARIANTS, bad={1: ConfigState.OUT_OF_MEMORY}), VARIANTS).splitlines()
    assert shown[3].split("  ")[0] == "no CUDA · Python 3.11"
    assert "▲ out of memory" in shown[3]
    assert "5, 516 MB" in shown[2]
    assert shown[-1].startswith("run 7: 1 out of memory, 3 done in ")


def test_a_run_is_json() -> None:
    told = json.loads(json.dumps(as_json(runs.worked_through(VARIANTS))))
    assert told["configs"][0]["state"] == "done"
    assert told["configs"][0]["packages"][0]["artifact"]["size"] == 240_000_000
