"""The page of a run in a real browser: nothing sticks out, nothing is complained about, states can be seen."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest

from kiln.run.report.page import run_index_html, run_page_html, write_run_pages
from kiln.state.results import ConfigState
from tests import runs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.needs("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr"),
    "--virtual-time-budget=2000",
)
# What is measured in the page; where an element scrolls by itself, what is inside may be wider.
MEASURE = """<pre id="measured"></pre><script>
const all = [...document.querySelectorAll("body *")];
const inside = element => element.parentElement.closest(".tail, svg, details:not([open])");
const label = element => element.className.baseVal ?? element.className;
const places = [...document.querySelectorAll(".place")];
const measure = () => document.getElementById("measured").textContent = JSON.stringify({
  page: document.documentElement.scrollWidth, window: innerWidth,
  outside: all.filter(e => !inside(e) && e.getBoundingClientRect().right > innerWidth + 1).map(label),
  cut: [...document.querySelectorAll(".place, .state, .figures b")]
    .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText),
  states: places.map(e => e.innerText.trim()), colours: places.map(e => getComputedStyle(e).backgroundColor),
  bars: [...document.querySelectorAll(".bar")].filter(e => e.getBoundingClientRect().width > 0).length,
});
measure();
</script></body>"""
# The number of backgrounds of the states in each picture; done and cached share theirs, as all failures do.
COLOURS = {(1, None): 0, (1, 1): 0, (4, None): 2, (12, 3): 4, (192, 20): 5}


def browse(page: Path, scratch: Path, *more: str, fragment: str = "") -> subprocess.CompletedProcess[str]:
    """Load a page from its file, and have the browser print what became of it."""
    argv = ("chromium", *FLAGS, f"--user-data-dir={scratch}", "--dump-dom", *more, f"{page.as_uri()}#{fragment}")
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def policy_free(text: str) -> str:
    return re.sub(r"<meta http-equiv=.Content-Security-Policy.*?>", "", text)


def measured(text: str, tmp_path: Path, *, width: int) -> dict[str, Any]:
    """Measure a page with a script of ours, which the page's own policy would forbid."""
    page = tmp_path / "measured.html"
    page.write_text(policy_free(text).replace("</body>", MEASURE))
    shown = browse(page, tmp_path / "profile", f"--window-size={width},1200").stdout
    result = re.search(r'<pre id="measured">(.*?)</pre>', shown)
    assert result
    told: dict[str, Any] = json.loads(unescape(result[1]))
    return told


def a_page(count: int, folder: Path, until: float | None = None, bad: dict[int, ConfigState] | None = None) -> str:
    """A page of so many configs, all of them with a log."""
    log = folder / "build.log"
    log.write_text("".join(f"[{number} / 400] " + "a/long/path/" * 20 + "\n" for number in range(400)))
    cudas, levels = {1: (1, 1), 4: (2, 1), 12: (3, 1), 192: (8, 4)}[count]
    pythons = [f"3.{minor}" for minor in range(9, 9 + count // cudas // levels)]
    variants = runs.variants(["None", *(f"12.{n}" for n in range(cudas - 1))], pythons, [str(n) for n in range(levels)])
    report = runs.worked_through(variants, jobs=min(8, max(1, count // 4)), until=until, bad=bad, log=log)
    earlier = [replace(runs.worked_through(variants, jobs=report.jobs, bad={0: ConfigState.FAILED}), run=6)]
    now = runs.BEGAN + (until or 0)
    return run_page_html(
        report, variants, name="some-feedstock", folder=folder, now=now, earlier=earlier, has_index=True
    )


def index(folder: Path) -> str:
    """An index of runs with all verdicts."""
    variants = runs.variants(["None", "12.5"], ["3.10", "3.11"])
    reports = [runs.worked_through(variants, bad={1: state}) for state in (ConfigState.FAILED, ConfigState.INTERRUPTED)]
    return run_index_html([runs.worked_through(variants, until=9.0), *reports], name="some-feedstock", folder=folder)


@pytest.mark.parametrize("width", [500, 1280])
@pytest.mark.parametrize(
    ("count", "hours", "bad"),
    [
        (1, None, {}),
        (1, 1, {}),
        (4, None, {2: ConfigState.FAILED}),
        (12, 3, {1: ConfigState.CACHED, 2: ConfigState.OUT_OF_MEMORY}),
        (192, 20, {9: ConfigState.FAILED, 40: ConfigState.DISK_FULL, 41: ConfigState.INTERRUPTED}),
    ],
)
def test_a_report_fits_its_window_and_shows_each_state(
    count: int, hours: int | None, bad: dict[int, ConfigState], width: int, tmp_path: Path
) -> None:
    text = a_page(count, tmp_path, until=hours and hours * runs.HOUR, bad=bad)
    seen = measured(text, tmp_path, width=width)
    assert seen["page"] <= seen["window"] == width
    assert seen["outside"] == []
    assert seen["cut"] == []
    assert len(seen["states"]) == (count if count > 1 else 0)  # of one config the heading says it
    for state in bad.values():
        assert any(state.value in told for told in seen["states"])
    assert len(set(seen["colours"])) == COLOURS[count, hours]
    assert seen["bars"] > 0


def test_a_report_loads_without_a_complaint(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(a_page(12, tmp_path, bad={2: ConfigState.FAILED}))
    assert complaints(browse(page, tmp_path / "profile")) == []
    page.write_text(index(tmp_path))
    assert complaints(browse(page, tmp_path / "profile")) == []


@pytest.mark.sampled
def test_the_pages_policy_would_stop_a_script_that_got_in(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    evil = '<script>document.title = "taken over"</script><style>h1 { display: none }</style></body>'
    page.write_text(a_page(1, tmp_path).replace("</body>", evil))
    done = browse(page, tmp_path / "profile")
    assert "<title>taken over" not in done.stdout
    assert len(complaints(done)) == 2


def test_a_log_is_shown_from_a_line_of_its_address(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    lines = (
        "=== compile",
        *(f"line {number}" for number in range(20_000)),
        "a.c:1: error: <b>no\x1b[0m",
        "--- compile: 1 s",
    )
    log.write_text("".join(f"2026-01-01 00:01:00 {line}\n" for line in lines))
    variants = runs.variants(["None"], ["3.11"])
    run = runs.worked_through(variants, bad={0: ConfigState.FAILED}, log=log)
    steps = tuple(replace(step, failed=step.title == "compile") for step in run.configs[0].steps)
    run = replace(run, configs=(replace(run.configs[0], steps=steps),))
    write_run_pages(run, variants, name="f", path=tmp_path / "0007.html")
    page = tmp_path / "0007-1.html"
    done = browse(page, tmp_path / "profile", fragment="L20002")
    assert complaints(done) == []
    assert re.search(r'id="L20002" class="line cause shown".*?<code>a\.c:1: error: &lt;b&gt;no</code>', done.stdout)
    assert "line 19999</code>" in done.stdout
    assert "line 10000</code>" not in done.stdout, "what nobody looks at is not laid out"
