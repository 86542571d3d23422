"""The documentation is consistent: its links, its index, and its lists of packages and commands."""

from __future__ import annotations

import functools
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kiln import __version__
from kiln.cli.main import COMMANDS
from tests.source_files import FILES
from tests.unit.test_source_rules import ORDER

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_link_within_the_project_leads_to_a_file() -> None:
    targets = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(page))]
    assert [(page, link) for page, link in targets if "://" not in link and not (page.parent / link).exists()] == []


@functools.cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@functools.cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"(?ms)^```.*?^```", "", text_of(page))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_anchor_is_a_heading() -> None:
    links = [(page, *link) for page in PAGES for link in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text_of(page))]
    targets = [(page, page.parent / target if target else page, anchor) for page, target, anchor in links]
    assert [(page, anchor) for page, target, anchor in targets if anchor not in anchors(target.resolve())] == []


def spans_of(page: Path) -> list[str]:
    """Return the code spans of a page, without its code blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^```.*?^```", "", text_of(page)))


def test_every_path_of_the_project_exists() -> None:
    foreign = {"ansible/roles/kiln_PROVIDER", "tests/test-recipes"}  # a pattern; conda-build's
    spans = {(page, span) for page in PAGES if page.name != "CHANGELOG.md" for span in spans_of(page)}
    paths = {(page, span) for page, span in spans if re.fullmatch(r"(kiln|ansible|tests)/[\w./*-]*", span)}
    assert [(page, path) for page, path in paths if path not in foreign and not any(ROOT.glob(path.rstrip("/")))] == []


def test_every_module_that_an_explanation_names_exists() -> None:
    spans = {span for page in PAGES if page.parent.name == "explanation" for span in spans_of(page)}
    names = {span for span in spans if re.fullmatch(r"\w+\.py", span)}
    of_packages = {"setup.py", "sitecustomize.py"}
    assert names - of_packages <= {file.name for file in FILES}


def test_every_module_of_the_flow_and_of_the_fleet_exists() -> None:
    explanation = ROOT / "docs" / "explanation"
    flow = [span for span in spans_of(explanation / "design.md") if re.fullmatch(r"[a-z_]+(?:/[a-z_]+)+", span)]
    assert flow
    assert [name for name in flow if not (ROOT / "kiln" / f"{name}.py").exists()] == []
    rows = re.findall(r"(?m)^\| (?!part)[\w, ]+ \| (.*`.*) \|$", (explanation / "workers.md").read_text())
    names = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    assert names
    assert names <= {file.stem for file in FILES if ROOT / "kiln" / "fleet" in file.parents}


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES if "docs" in page.relative_to(ROOT).parts]
    assert [page for page in pages if page != "README.md" and f"({page})" not in index] == []


def test_every_page_opens_with_what_it_is_for() -> None:
    openings = {page: text_of(page).split("\n\n")[1] for page in PAGES}
    assert [page for page, words in openings.items() if re.match(r"```|\||#|[-*] |\d+\.|<", words)] == []


@pytest.fixture
def site() -> Any:
    """The program that builds the documentation as a site."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "site.py")))


def test_the_site_has_every_page_in_the_order_of_the_index(site: Any) -> None:
    listed = re.findall(r"'(docs/[^']+)'", site.navigation())
    pages = [str(page.relative_to(ROOT)) for page in PAGES if "docs" in page.relative_to(ROOT).parts]
    assert sorted(listed) == sorted(pages)
    assert listed[0] == "docs/tutorial/first-packages.md"


def test_the_site_has_what_its_pages_lead_to(site: Any, tmp_path: Path) -> None:
    site.copy_pages(tmp_path)
    assert (tmp_path / "kiln/compat/data/failures.ini").is_file()
    assert (tmp_path / "docs/pictures/page-light.svg").is_file()
    assert not list(tmp_path.rglob("*.py")) or all("tests" in path.parts for path in tmp_path.rglob("*.py"))


def test_dead_links_and_anchors_of_the_site_are_found(site: Any, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#there">1</a><a href="b.html#gone">2</a><a href="c.html">3</a>')
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1><a href="#there">4</a><a href="https://x.example/y">5</a>')
    assert site.faults(tmp_path) == ["a.html: b.html#gone", "a.html: c.html"]


def test_the_list_of_packages_is_the_one_that_is_tested() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", (ROOT / "docs/explanation/design.md").read_text(), re.MULTILINE)
    assert rows == [(str(place), package) for place, package in enumerate(ORDER, 1)]


def test_the_table_of_commands_is_complete() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| ", (ROOT / "docs/reference/commands.md").read_text(), re.MULTILINE)
    assert dict(rows) == COMMANDS


def test_no_two_lines_of_the_changelog_describe_the_same() -> None:
    beginnings = re.findall(r"^- (.{40})", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert [text for text in sorted(set(beginnings)) if beginnings.count(text) > 1] == []


def total(counts: list[tuple[str, str, int, int]], kind: str) -> tuple[int, int]:
    """Return how many feedstocks of a kind were rehearsed, and how many were tried."""
    rehearsed = sum(each[2] for each in counts if each[0] == kind)
    return rehearsed, rehearsed + sum(each[3] for each in counts if each[0] == kind)


def test_the_rehearsed_feedstocks_are_counted_as_their_table_lists_them() -> None:
    page = (ROOT / "docs/reference/tested.md").read_text()
    rows = re.findall(r"^\| (`noarch: python`|compiled), `(.+)` \| (.+) \|(.*)\|$", page, re.MULTILINE)
    counts = [(kind, file, rehearsed.count(",") + 1, len(others.split())) for kind, file, rehearsed, others in rows]
    noarch, compiled = (total(counts, kind) for kind in ("`noarch: python`", "compiled"))
    assert f"on {noarch[1] + compiled[1]} feedstocks" in page
    assert f"So {noarch[0]} of {noarch[1]} `noarch` packages, and {compiled[0]} of {compiled[1]} compiled ones" in page
    number = sum(each[2] for each in counts if each[1] == "recipe.yaml")
    assert f"[{number} feedstocks" in (ROOT / "docs/reference/recipe-yaml.md").read_text()


def test_the_version_is_the_same_everywhere() -> None:
    project = re.search(r'(?m)^version = "(.+)"$', (ROOT / "pyproject.toml").read_text())
    release = re.search(r"(?m)^## (\S+) - ", (ROOT / "CHANGELOG.md").read_text())
    assert project
    assert release
    assert project[1] == release[1] == __version__
