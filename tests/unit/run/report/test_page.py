"""The page of a run holds what matters, trusts nothing, and stays small."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from kiln.base.files import human_readable_size
from kiln.base.serialization import to_json
from kiln.run.report import comparison
from kiln.run.report.comparison import step_bars
from kiln.run.report.page import polyline_points, repeat_command, run_index_html, run_page_html, write_run_pages
from kiln.run.report.text import LINES, WIDTH, end_of_log, run_table_markdown, run_table_text
from kiln.run.view.state import expected_period_text
from kiln.state.results import ConfigRun, ConfigState, MatrixReport, RunCost, StepReport
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
    return run_page_html(report, VARIANTS, name=name, folder=folder, now=runs.BEGAN + 4 * runs.HOUR)


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
    fields = ("command", "machine", "engine", "container", "image", "commit", "remote_url", "kiln_version", "ci_url")
    words = dict.fromkeys(fields, text)
    return replace(report, configs=configs, **words)  # type: ignore[arg-type]


def test_nothing_of_a_build_becomes_part_of_the_page(tmp_path: Path) -> None:
    log = tmp_path / "javascript:alert(1) <&>.log"
    log.write_text(EVIL * 3)
    run = everywhere(EVIL, log)
    page = run_page_html(run, VARIANTS, name=EVIL, folder=tmp_path, now=runs.BEGAN, earlier=[replace(run, run=6)])
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
    from kiln.run.view.state import SIGNS

    config = ConfigRun(config="a", state=state, group="", started=runs.BEGAN)
    report = replace(runs.worked_through({}), finished=None, configs=(config,))
    text = Elements(page_of(report, tmp_path)).text
    assert SIGNS[state] in text
    assert state.value in text


def test_all_that_failed_is_shown_by_one_filter(tmp_path: Path) -> None:
    states = [state for state in ConfigState for _ in range(2)]
    configs = tuple(ConfigRun(config=f"c{i}", state=state, group="") for i, state in enumerate(states))
    page = page_of(replace(runs.worked_through({}), finished=None, configs=configs), tmp_path)
    labels = re.findall(r'id="show-([^"]*)"[^>]*> ([a-z ]+) (\d+)</label>', page)
    assert ("failed", "failed", "6") in labels
    assert sum(int(number) for _, _, number in labels) == 2 * len(states)  # "all" has as many as the others together
    for kind, _, _ in labels[1:]:  # each has its rule, which names the classes that stay
        (kept,) = re.findall(rf"#show-{kind}:checked\) .row:not\((.*?)\)[,\s]", page)
        assert f".{kind}" in kept.split(", ")


@pytest.mark.parametrize(
    ("until", "banner"), [(None, None), (2 * runs.HOUR, "This run is in progress"), (0, "This run is in progress")]
)
def test_a_run_in_progress_has_a_banner(until: float | None, banner: str | None, tmp_path: Path) -> None:
    page = page_of(runs.worked_through(VARIANTS, until=until), tmp_path)
    assert ("is in progress." in page) is (banner is not None)
    assert "was interrupted" not in page
    report = runs.worked_through(VARIANTS, until=2 * runs.HOUR)
    killed = replace(report, configs=tuple(replace(config, state=ConfigState.INTERRUPTED) for config in report.configs))
    assert "This run was interrupted" in page_of(killed, tmp_path)


def test_a_rehearsal_says_that_it_is_one(tmp_path: Path) -> None:
    run = runs.worked_through(VARIANTS)
    assert "A rehearsal:" not in Elements(page_of(run, tmp_path)).text
    assert "have upstream's compiled parts" in Elements(page_of(replace(run, rehearsal=True), tmp_path)).text
    other = replace(run, rehearsal=True, configs=tuple(replace(config, packages=()) for config in run.configs))
    assert "made on this machine's programs and wheels" in Elements(page_of(other, tmp_path)).text


HEADLINES = [
    (None, {}, False, "4 of 4 built"),
    (None, {}, True, "4 of 4 rehearsed"),
    (None, {1: ConfigState.FAILED, 2: ConfigState.DISK_FULL}, False, "2 of 4 failed"),
    (None, {1: ConfigState.INTERRUPTED}, False, "interrupted: 3 of 4 built"),
    (None, {1: ConfigState.LOCKED}, False, "interrupted: 3 of 4 built"),
    (3.5 * runs.HOUR, {}, False, "running: 2 of 4 built"),
    (4 * runs.HOUR, {0: ConfigState.FAILED}, False, "running: 2 of 4 built, 1 of 4 failed"),
]


@pytest.mark.parametrize(("until", "bad", "rehearsal", "words"), HEADLINES)
def test_title_and_heading_begin_with_the_verdict(
    until: float | None, bad: dict[int, ConfigState], rehearsal: bool, words: str, tmp_path: Path
) -> None:
    run = replace(runs.worked_through(VARIANTS, until=until, bad=bad), rehearsal=rehearsal)
    page = page_of(run, tmp_path)
    assert f"<title>{words}: feedstock, run 7</title>" in page
    heading = re.search("<h1>.*?</h1>", page, re.DOTALL)
    assert heading
    assert words in heading[0]


def test_cached_configs_are_counted_in_the_heading(tmp_path: Path) -> None:
    run = runs.worked_through(VARIANTS, bad={1: ConfigState.CACHED})
    assert "4 of 4 built (1 cached): " in page_of(replace(run, finished=run.started + 9), tmp_path)


def test_commit_and_ci_are_links_and_the_version_is_shown(tmp_path: Path) -> None:
    repository = "https://git.example/some/x"
    run = replace(
        runs.worked_through(VARIANTS),
        commit="0123456789" * 4,
        remote_url=f"{repository}.git",
        kiln_version="9.8.7",
        ci_url=f"{repository}/actions/runs/5",
    )
    elements = Elements(page_of(run, tmp_path))
    links = {attributes.get("href") for tag, attributes in elements.found if tag == "a"}
    assert {f"{repository}/commit/{'0123456789' * 4}", f"{repository}/actions/runs/5"} <= links
    assert "01234567" in elements.text
    assert "9.8.7" in elements.text


@pytest.mark.parametrize(
    "url",
    ["javascript:alert(1)", "//git.example/x", "https://me:secret@git.example/x", "https://[", "ftp://h/x", "https:x"],
)
def test_an_address_that_is_no_web_page_becomes_no_link(url: str, tmp_path: Path) -> None:
    run = replace(runs.worked_through(VARIANTS), commit="0123456", remote_url=url, ci_url=url)
    links = [attributes.get("href") or "" for tag, attributes in Elements(page_of(run, tmp_path)).found if tag == "a"]
    assert links
    assert all(link.startswith("#") for link in links)


def figure(page: str, title: str) -> str:
    """The figure of a title at the top of a page, with its remark."""
    match = re.search(f"<dt>{title}</dt><dd><b>(.*?)</b><span>(.*?)</span>", page)
    assert match
    return f"{match[1]} {match[2]}"


def failed_by_its_test(config: ConfigRun) -> ConfigRun:
    return replace(config, steps=(*config.steps[:-1], replace(config.steps[-1], failed=True)))


def test_a_failed_test_is_counted(tmp_path: Path) -> None:
    run = runs.worked_through(VARIANTS, bad={1: ConfigState.FAILED})
    first, second, *others = run.configs
    page = page_of(replace(run, configs=(first, failed_by_its_test(second), *others)), tmp_path)
    assert figure(page, "tests") == "5 of 6 tested packages pass"
    assert 'data-t="tests">0 of 1 pass</td>' in page


def test_tests_of_a_config_that_failed_before_them_are_said_to_be_missing(tmp_path: Path) -> None:
    page = page_of(runs.worked_through(VARIANTS, bad={1: ConfigState.OUT_OF_MEMORY}), tmp_path)
    assert figure(page, "tests") == "15 pass, of 5 packages; 3 of 4 configs have results"
    everything = page_of(runs.worked_through(VARIANTS), tmp_path)
    assert figure(everything, "tests") == "15 pass, of 5 packages", "all configs have the same files"


def test_a_package_that_several_configs_have_is_shown_as_the_one_has_it_that_made_it() -> None:
    first, second, *_ = runs.worked_through(VARIANTS).configs
    package = first.packages[0]
    waited = replace(first, packages=(replace(package, reused=True),))
    made = replace(second, packages=(replace(package, reused=False),))
    for configs in ((waited, made), (made, waited)):
        assert comparison.distinct_packages(configs) == [made.packages[0]]


def test_steps_are_bars_one_after_another(tmp_path: Path) -> None:
    config = runs.worked_through(VARIANTS).configs[0]
    (fetch, compiled, tested) = step_bars(config, 3.1 * runs.HOUR)
    assert fetch[0] == 0.0
    assert fetch[1] == pytest.approx(0.127, abs=1e-3)
    assert compiled[0] == pytest.approx(fetch[1], abs=1e-3)
    assert compiled[1] == pytest.approx(90.0, abs=1e-3)
    assert tested[0] == pytest.approx(fetch[1] + compiled[1], abs=2e-3)
    assert step_bars(replace(config, steps=()), None) == ()
    together = [StepReport(title=str(n), seconds=2.0 + n, began=runs.BEGAN + n, reused=False) for n in range(3)]
    assert step_bars(replace(config, steps=tuple(together)), 8.0) == ((0.0, 25.0), (12.5, 37.5), (25.0, 50.0))
    page = page_of(replace(runs.worked_through(VARIANTS), configs=(config,)), tmp_path)
    assert page.count('class="bar done"') == 3
    assert f'x="{compiled[0]}%" width="{compiled[1]}%"' in page


def test_steps_longer_than_their_config_stay_in_the_chart() -> None:
    config = runs.worked_through(VARIANTS).configs[0]
    bars = step_bars(config, 1.0)
    assert all(start + width <= 100.01 for start, width in bars)


def test_the_page_names_what_changed_and_links_the_earlier_page(tmp_path: Path) -> None:
    (tmp_path / "0006.html").write_text("a page\n")
    before = replace(runs.worked_through(VARIANTS), run=6)
    run = runs.worked_through(VARIANTS, bad={1: ConfigState.FAILED})
    page = run_page_html(run, VARIANTS, name="f", folder=tmp_path, earlier=[before], has_index=True)
    assert 'Since run <a href="./0006.html">6</a>' in page
    assert "<p>1 new failure.</p>" in page
    assert '<a href="./index.html">All runs</a>' in page
    (tmp_path / "0006.html").unlink()
    alone = run_page_html(run, VARIANTS, name="f", folder=tmp_path, earlier=[before])
    assert "0006.html" not in alone
    assert "index.html" not in alone
    assert "Since run" not in page_of(run, tmp_path)


def test_a_package_that_grew_has_its_size_before_and_now(tmp_path: Path) -> None:
    run = runs.worked_through(VARIANTS)

    def shrunk(config: ConfigRun) -> ConfigRun:
        first, *others = config.packages
        smaller = replace(first, artifact=replace(first.artifact, size=first.artifact.size // 2, sha256="f" * 64))
        return replace(config, packages=(smaller, *others))

    before = replace(run, run=6, configs=tuple(map(shrunk, run.configs)))
    page = run_page_html(run, VARIANTS, name="f", folder=tmp_path, earlier=[before])
    name, size = run.configs[0].packages[0].artifact.name, run.configs[0].packages[0].artifact.size
    (line,) = re.findall(rf"<li><b>{name}</b> .*</li>", page)
    whole = human_readable_size(4 * size)
    assert line.endswith(f"{human_readable_size(4 * (size // 2))} → {whole} in all 4 builds</li>")
    page = run_page_html(
        run, VARIANTS, name="f", folder=tmp_path, earlier=[replace(before, configs=before.configs[:1])]
    )
    (line,) = re.findall(rf"<li><b>{name}</b> .*</li>", page)
    assert line.endswith(f"{human_readable_size(size // 2)} → {human_readable_size(size)} in 1 of 4 builds</li>")


def test_a_cached_config_has_the_log_that_built_it(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "0005" / "a.log"
    log.parent.mkdir(parents=True)
    log.write_text("built\n")
    built = replace(runs.worked_through(VARIANTS, log=log), run=5)
    run = runs.worked_through(VARIANTS, bad={1: ConfigState.CACHED})
    page = run_page_html(run, VARIANTS, name="f", folder=tmp_path / "reports", earlier=[built])
    assert page.count('href="../logs/0005/a.log"') == 1
    assert "of run 5</small>" in page


def test_a_log_that_is_gone_is_no_link(tmp_path: Path) -> None:
    page = page_of(runs.worked_through(VARIANTS, log=tmp_path / "gone.log"), tmp_path)
    assert "gone.log" not in page
    assert "log is gone" in page


def test_the_end_of_a_log_is_bounded_whatever_the_log_is(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_bytes(b"\xff\x00" * 1_000_000 + b"x" * 5_000_000 + b"\nlast\r\n")
    assert len(end_of_log(log)) <= LINES * (WIDTH + 1)
    assert end_of_log(log).endswith("last")
    log.write_text("".join(f"line {number}\n" for number in range(1000)))
    assert end_of_log(log).splitlines() == [f"line {number}" for number in range(1000 - LINES, 1000)]


def test_the_end_of_a_log_has_the_scripts_own_lines_with_their_indentation(tmp_path: Path) -> None:
    log, time = tmp_path / "build.log", "2026-11-22 19:10:27 "
    lines = ("+ export CC=gcc", "+ CC=gcc", "+ make", "a.c:1: error", "    int a", "", "--- build a: 0.5 s")
    log.write_text("".join(f"{time}{line}\n" for line in lines))
    kept = ("+ make", "a.c:1: error", "    int a", "--- build a: 0.5 s")
    assert end_of_log(log).splitlines() == [f"{time}{line}" for line in kept]


def test_a_link_in_a_logs_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "build.log").symlink_to(tmp_path / "secret")
    assert end_of_log(tmp_path / "build.log") == ""
    assert end_of_log(tmp_path) == ""
    assert end_of_log(tmp_path / "none") == ""


def test_a_page_of_192_failures_stays_small(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text(("&" * 200 + "\n") * 1000)
    variants = runs.variants([f"12.{n}" for n in range(8)], [f"3.{n}" for n in range(6)], [str(n) for n in range(4)])
    report = runs.worked_through(variants, jobs=8, bad=dict.fromkeys(range(192), ConfigState.FAILED), log=log)
    assert len(run_page_html(report, variants, name="f", folder=tmp_path)) < 1_500_000


def test_markdown_is_a_table_that_a_build_cannot_break() -> None:
    report = runs.worked_through(VARIANTS, bad={1: ConfigState.FAILED})
    configs = (
        replace(report.configs[1], reason="a | b\n<script> `x` [y](https://evil.example) @team"),
        *report.configs[2:],
    )
    shown = run_table_markdown(replace(report, configs=configs), VARIANTS)
    lines = [line for line in shown.splitlines() if line]
    assert lines[0].startswith("### run 7: 1 failed, 2 done in ")
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[1:]} == {9}
    assert "<script>" not in shown
    assert "](https" not in shown


def test_the_table_for_a_terminal_has_a_line_for_each_config() -> None:
    shown = run_table_text(runs.worked_through(VARIANTS, bad={1: ConfigState.OUT_OF_MEMORY}), VARIANTS).splitlines()
    assert shown[3].split("  ")[0] == "no CUDA · Python 3.11"
    assert "▲ out of memory" in shown[3]
    assert "5, 516 MB" in shown[2]
    assert shown[-1].startswith("run 7: 1 out of memory, 3 done in ")


def test_the_cost_of_a_run_on_workers_is_shown_and_no_other(tmp_path: Path) -> None:
    run = runs.worked_through(VARIANTS)
    assert "<dt>cost</dt>" not in page_of(run, tmp_path)
    cost = RunCost(spent=3.2, expected=16.2, currency="USD", end=9e9)
    assert figure(page_of(replace(run, cost=cost), tmp_path), "cost") == "3.20 USD of about 16.20 USD in the end"
    assert figure(page_of(replace(run, cost=replace(cost, spent=16.2)), tmp_path), "cost") == "16.20 USD in total"
    assert run_table_text(replace(run, cost=cost), VARIANTS).endswith(", 3.20 of about 16.20 USD")
    assert to_json(replace(run, cost=cost))["cost"]["expected"] == 16.2


def test_the_page_of_a_run_on_workers_says_when_open_configs_are_expected(tmp_path: Path) -> None:
    run = runs.worked_through(VARIANTS, jobs=2, until=runs.HOUR)
    now = runs.BEGAN + runs.HOUR
    open_configs = [config.config for config in run.configs if config.finished is None]
    waiting = [config.config for config in run.configs if config.state is ConfigState.WAITING]
    ends = {config: now + 7200.0 * number for number, config in enumerate(open_configs, 1)}
    starts = {config: ends[config] - 3600 for config in waiting}
    cost = RunCost(
        spent=1.0, expected=2.0, currency="USD", end=max(ends.values()), config_ends=ends, config_starts=starts
    )
    report = replace(run, cost=cost)
    page = run_page_html(report, VARIANTS, name="f", folder=tmp_path, now=now)
    assert waiting
    assert len(open_configs) > len(waiting)
    assert page.count("expected (UTC)</th>") == 1
    for config in waiting:
        assert (
            f'<td class="n" data-t="expected">{expected_period_text(starts[config], ends[config], now, utc=True)}</td>'
            in page
        )
    assert figure(page, "end").endswith(f"UTC, expected in about {2 * len(open_configs)} h 00")
    assert "expected" in run_table_text(report, VARIANTS).splitlines()[0]
    assert "(UTC)" not in run_page_html(run, VARIANTS, name="f", folder=tmp_path, now=now), "a run on this computer"
    assert "expected" not in run_table_text(run, VARIANTS).splitlines()[0]
    ended = replace(report, finished=now)
    assert "expected (UTC)" not in run_page_html(ended, VARIANTS, name="f", folder=tmp_path, now=now)


RUN = runs.worked_through(("a", "b"))


def test_a_long_name_breaks_between_its_parts(tmp_path: Path) -> None:
    run = runs.worked_through(["linux_64_cuda_compiler_version12.9<b>"])
    page = run_page_html(run, {}, name="f", folder=tmp_path)
    assert "linux_<wbr>64_<wbr>cuda_<wbr>compiler_<wbr>version12.9&lt;b&gt;" in page


def test_each_run_has_its_verdict_and_a_link_if_its_page_exists(tmp_path: Path) -> None:
    (tmp_path / "0007.html").write_text("a page\n")
    failed = replace(runs.worked_through(("a", "b"), bad={0: ConfigState.FAILED}), run=6, rehearsal=True)
    page = run_index_html([RUN, failed], name="x", folder=tmp_path, omitted=3)
    elements = Elements(page)
    links = [attributes["href"] for tag, attributes in elements.found if tag == "a"]
    assert links == ["./0007.html"]
    assert elements.text.index("2 of 2 built") < elements.text.index("1 of 2 failed")
    assert "rehearsal" in elements.text
    assert "3 earlier runs" in elements.text


def test_a_run_in_progress_has_its_time_so_far(tmp_path: Path) -> None:
    run = runs.worked_through(("a", "b"), until=600.0)
    page = run_index_html([run], name="x", folder=tmp_path, now=runs.BEGAN + 600)
    assert "running: 0 of 2 built" in page
    assert "10 min 00 s" in page
    assert "earlier runs" not in page


def test_nothing_of_a_run_becomes_part_of_the_index(tmp_path: Path) -> None:
    run = replace(RUN, command=EVIL, commit=EVIL, remote_url=EVIL)
    page = run_index_html([run], name=EVIL, folder=tmp_path)
    elements = Elements(page)
    assert not {"script", "img", "iframe", "base", "form", "a"} & {tag for tag, _ in elements.found}
    assert not any(name.startswith("on") or name == "style" for _, attributes in elements.found for name in attributes)
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "default-src 'none'" in page


def written(run: MatrixReport, folder: Path, variants: runs.Variants = VARIANTS) -> str:
    write_run_pages(run, variants, name="f", path=folder / "0007.html")
    return (folder / "0007.html").read_text()


def failed_run(log: Path) -> MatrixReport:
    """A run whose second config failed in its compile step."""
    log.write_text("2026-01-01 00:00:00 === compile\n2026-01-01 00:00:09 a.c:1: error: <b>no\x1b[0m\n")
    run = runs.worked_through(VARIANTS, bad={1: ConfigState.FAILED}, log=log)
    first, second, *others = run.configs
    step = replace(second.steps[1], failed=True)
    return replace(run, configs=(first, replace(second, steps=(second.steps[0], step)), *others))


def test_a_failure_shows_its_line_and_leads_to_it_in_the_configs_page(tmp_path: Path) -> None:
    run = failed_run(tmp_path / "a.log")
    page = written(run, tmp_path)
    assert "<pre>a.c:1: error: &lt;b&gt;no</pre>" in page
    assert 'href="./0007-2.html#L2"' in page
    assert f"kiln build {run.configs[1].config}" in page
    own = Elements((tmp_path / "0007-2.html").read_text())
    steps = [attributes for tag, attributes in own.found if tag == "details" and attributes.get("class", "")]
    assert ("step failed-step", "1", "2") in {
        (step["class"], step.get("data-line"), step.get("data-lines")) for step in steps
    }
    assert any(attributes.get("data-marked") == "2" for _, attributes in own.found)


def test_a_page_of_a_log_runs_no_script_but_its_own(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(EVIL * 3)
    written(everywhere(EVIL, log), tmp_path)
    page = (tmp_path / "0007-1.html").read_text()
    scripts = [attributes for tag, attributes in Elements(page).found if tag == "script"]
    assert [script.get("type") for script in scripts] == ["application/octet-stream", None]
    policy = re.search(r"script-src 'sha256-([^']+)'", page)
    own = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert policy
    assert own
    assert policy[1] == base64.b64encode(hashlib.sha256(own[1].encode()).digest()).decode()
    assert "unsafe-inline" not in page


def test_a_configs_page_is_written_again_only_when_its_log_changes(tmp_path: Path) -> None:
    log, page = tmp_path / "a.log", tmp_path / "0007-1.html"
    run = failed_run(log)
    written(run, tmp_path)
    page.write_text(page.read_text() + "<!-- kept -->")
    written(run, tmp_path)
    assert "<!-- kept -->" in page.read_text()
    log.write_text("more\n")
    written(run, tmp_path)
    assert "<!-- kept -->" not in page.read_text()


def test_with_one_config_nothing_repeats(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("2026-01-01 00:00:00 === test p\n2026-01-01 00:00:00 + p --check\n")
    variants = runs.variants(["None"], ["3.11"])
    page = written(runs.worked_through(variants, log=tmp_path / "a.log"), tmp_path, variants)
    for heading in ("Matrix", "Timeline", "Configs"):
        assert f">{heading}</h2>" not in page
    for heading in ("Where the time went", "Packages", "Tests", "Built from"):
        assert page.count(f">{heading}</h2>") == 1
    assert '<a href="./0007-1.html#L2">' in page
    assert "<code>p --check</code>" in page


def test_a_page_of_200_configs_is_under_300_kb(tmp_path: Path) -> None:
    variants = runs.variants([f"12.{n}" for n in range(10)], [f"3.{n}" for n in range(5)], [str(n) for n in range(4)])
    run = runs.worked_through(variants, jobs=8, bad=dict.fromkeys(range(9), ConfigState.FAILED))
    assert len(run_page_html(run, variants, name="f", folder=tmp_path, earlier=[replace(run, run=6)])) < 300_000


@pytest.mark.parametrize(
    ("values", "points"),
    [
        ([1, 3], "2.0,21.0 98.0,3.0"),
        ([5, 5, 5], "2.0,12.0 50.0,12.0 98.0,12.0"),
        ([0.0, 4.0, 2.0], "2.0,21.0 50.0,3.0 98.0,12.0"),
    ],
)
def test_a_graph_fills_its_box(values: list[float], points: str) -> None:
    assert polyline_points(values) == points


REPEATED = [
    ("kiln build --all -j 2", "kiln build a"),
    ("kiln build --all --container none --filter '*x*' --memory 4GB", "kiln build a --container none --memory 4GB"),
    ("kiln build b .ci_support/a.yaml --network=always --junit=x.xml", "kiln build a --network=always"),
    ("kiln -C /some/folder build --all --rehearse", "kiln build a --rehearse"),
    ("build-locally.py --rehearse", "python build-locally.py a --rehearse"),
    ("kiln fleet run --provider aws --all", "kiln build a"),
    ("kiln build 'unclosed", "kiln build a"),
    ("", "kiln build a"),
]


@pytest.mark.parametrize(("command", "repeated"), REPEATED)
def test_a_config_is_repeated_with_the_options_of_its_run(command: str, repeated: str) -> None:
    report = replace(runs.worked_through(["a", "b"]), command=command)
    assert repeat_command(report, report.configs[0]) == repeated
