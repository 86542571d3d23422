"""``kiln bump`` with a server on this machine, and on real feedstocks up to their downloads."""

from __future__ import annotations

import difflib
import hashlib
import http.server
import json
import os
import re
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base import limits
from kiln.base.errors import DownloadFailed, TemplateFault, UnsafeTemplate
from kiln.feedstock.bump import bump, upstream
from kiln.feedstock.bump.literals import SourceView
from kiln.recipe import feedstock as recipe_feedstock
from tests import warm
from tests.bumping import OLD, bumped, changed_lines, feedstock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.feedstock.bump.changes import BumpPlan
    from kiln.recipe.feedstock import Feedstock

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
CASES = sorted([*SHARED.glob("golden/*/case.json"), *SHARED.glob("golden-v1/*/case.json")])
ARCHIVE = b"\x1f\x8b" + b"archive" * 100_000
SPELLINGS = {"nccl": "77.6.5-4"}  # the version as a recipe has it, where that is not the package's
PINNED = {"openmm"}  # at a commit, which the tags of the repository tell


class Handler(http.server.BaseHTTPRequestHandler):
    """A server of releases: ``/moved`` redirects, ``/cut`` breaks off, ``/page`` answers with an error page."""

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        if kind == "simple":
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            digest = hashlib.sha256(ARCHIVE).hexdigest()
            links = (f'<a href="/plain/{name}#sha256={digest}">{name}</a>' for name in ("a-1.0.tar.gz", "a-2.0.tar.gz"))
            self.wfile.write("\n".join(links).encode())
        elif kind == "moved":
            self.send_response(302)
            self.send_header("Location", "/plain/a-2.0.tar.gz")
            self.end_headers()
        elif kind == "none" or not self.path.endswith("-2.0.tar.gz"):
            self.send_error(404)
        else:
            data = b"<!doctype html>" if kind == "page" else ARCHIVE
            self.send_response(200)
            if kind != "unsized":
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if kind == "cut" else data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def recipe(*urls: str) -> str:
    """Return a recipe with a source for each URL."""
    sources = "".join(f"  - url: {url}/a-{{{{ version }}}}.tar.gz\n    sha256: {OLD}\n" for url in urls)
    return f'{{% set version = "1.0" %}}\npackage:\n  name: a\n  version: {{{{ version }}}}\nsource:\n{sources}'


@pytest.mark.parametrize("kind", ["plain", "moved", "unsized"])
def test_a_release_of_a_server_is_hashed(kind: str, server: str, tmp_path: Path) -> None:
    plan = bumped(feedstock(tmp_path, recipe(f"{server}/{kind}")), "2.0")
    assert changed_lines(plan)[7] == f"sha256: {hashlib.sha256(ARCHIVE).hexdigest()}"


def test_a_release_that_its_address_lacks_is_found_on_pips_index(server: str, tmp_path: Path) -> None:
    case = feedstock(tmp_path, recipe(f"{server}/none/packages/source/a/a"))
    env = {"PATH": os.environ["PATH"], "PIP_INDEX_URL": f"{server}/simple", "PIP_CONFIG_FILE": os.devnull}
    plan = bumped(case, "2.0", env)
    assert changed_lines(plan)[7] == f"sha256: {hashlib.sha256(ARCHIVE).hexdigest()}"
    (note,) = plan.notes
    assert f"the hash is that of the file on pip's index: {server}/plain/a-2.0.tar.gz" in note
    with pytest.raises(DownloadFailed, match="the server answered 404"):
        bumped(case, "3.0", env)


def test_all_releases_that_a_server_does_not_have_are_named(server: str, tmp_path: Path) -> None:
    text = recipe(f"{server}/plain", f"{server}/cut", f"{server}/page", "http://127.0.0.1:9/closed")
    with pytest.raises(DownloadFailed) as caught:
        bumped(feedstock(tmp_path, text), "2.0")
    reasons = re.findall(r"why: (.*)", str(caught.value))
    assert len(reasons) == 3
    assert "broke off" in reasons[0] or "IncompleteRead" in reasons[0]
    assert reasons[1] == "the server sent a web page, not a .gz file"
    assert reasons[2] == "127.0.0.1 cannot be reached: Connection refused"
    hints = re.findall(r"try: (.*)", str(caught.value))
    assert ["released it there" in hint for hint in hints] == [True, True, False]
    assert "where 127.0.0.1 can be reached" in hints[2]
    with pytest.raises(DownloadFailed, match="the server answered 404"):
        bumped(feedstock(tmp_path / "other", recipe(f"{server}/plain")), "3.0")


def test_the_command_writes_what_git_shows_as_changed_values_alone(server: str, tmp_path: Path) -> None:
    case = feedstock(tmp_path, recipe(f"{server}/plain") + "build:\n  number: 2  # kept\n")
    before = case.meta.read_text().splitlines()
    result = warm.kiln("-C", str(tmp_path), "bump", "2.0", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["version"] == {"old": "1.0", "new": "2.0"}
    lines = difflib.unified_diff(before, case.meta.read_text().splitlines(), n=0, lineterm="")
    assert [line for line in lines if line.startswith("+") and not line.startswith("+++")] == [
        '+{% set version = "2.0" %}',
        f"+    sha256: {hashlib.sha256(ARCHIVE).hexdigest()}",
        "+  number: 0  # kept",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "{% for a in range(99999999) %}{% for b in range(99999999) %}{% endfor %}{% endfor %}",
        "{% set a = 'x' * 9999999999 %}",
        "{% set version = 1 %}\n" * 3_000 + "{% set a =\n" * 3_000,
    ],
    ids=["loop", "memory", "unclosed"],
)
def test_a_hostile_recipe_is_refused_in_bounded_time(line: str, tmp_path: Path) -> None:
    case = feedstock(tmp_path, f"{line}\n{recipe('http://127.0.0.1:9')}")
    before = time.monotonic()
    with pytest.raises((UnsafeTemplate, TemplateFault)):
        bumped(case, "2.0")
    assert time.monotonic() - before < 120


def tree(case: Path, folder: Path) -> Feedstock:
    """Return a copy of a real feedstock, with its configs."""
    shutil.copytree(case.parent, folder, ignore=shutil.ignore_patterns("expected", "case.json"))
    shutil.copytree(case.parent / "expected" / "ci_support", folder / ".ci_support", dirs_exist_ok=True)
    return recipe_feedstock.load(folder)


def index(folder: Path, **projects: tuple[str, ...]) -> dict[str, str]:
    """Write a simple index as pages on the disk, and return pip's settings for it."""
    for project, names in projects.items():
        page = folder / project / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text("".join(f'<a href="{name}">{name}</a>\n' for name in names))
    settings = {"PIP_INDEX_URL": folder.as_uri(), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    return {"PATH": os.environ["PATH"], "HOME": str(folder), **settings}


def test_pips_index_tells_the_newest_release(tmp_path: Path) -> None:
    env = index(
        tmp_path / "simple",
        a=("a-1.0.tar.gz", "a-1.10.tar.gz", "a-1.9.tar.gz", "a-2.0rc1.tar.gz", "a-3.0-py3-none-any.whl"),
    )
    url = "https://example.org/packages/source/{}/{}/{}-1.0.tar.gz"
    known, unknown = (SourceView(urls=(url.format(name[0], name, name),)) for name in ("a", "missing"))
    known_answer, missing = upstream.newest_upstream_versions([known, unknown], "1.0", tmp_path, env=env)
    assert (known_answer.newest, known_answer.index, known_answer.is_newer("1.9"), known_answer.is_newer("1.10")) == (
        "1.10", "pip's index, project a", True, False,
    )  # fmt: skip
    assert not missing.newest
    assert "No matching distribution found for missing" in missing.reason


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("tensorflow-2.21.0-cp313-cp313-manylinux_2_27_x86_64.whl",), None),
        (
            (
                "tensorflow-2.21.0-cp314-cp314-manylinux_2_27_x86_64.whl",
                "tensorflow-2.22.0-cp313-cp313-manylinux_2_27_x86_64.whl",
                "tensorflow-2.22.0-cp314-cp314-manylinux_2_27_aarch64.whl",
                "tensorflow-2.22.0-cp315-cp315-win_amd64.whl",
                "tensorflow-2.23.0rc1-cp315-cp315-manylinux_2_27_x86_64.whl",
            ),
            ("2.22.0", ("3.14",)),
        ),
    ],
)
def test_pythons_that_upstream_has_wheels_for_and_the_matrix_lacks_are_told(
    tmp_path: Path, names: tuple[str, ...], told: tuple[str, tuple[str, ...]] | None
) -> None:
    pages = tuple(f"{name}#sha256={'0' * 64}" for name in names)
    found = bump.pythons_missing_in_matrix(recipe_feedstock.load(ROOT), env=index(tmp_path, tensorflow=pages))
    assert (found and (found.version, found.pythons)) == told


@pytest.mark.skipif(not CASES, reason="shared/golden, the reference answers on real feedstocks, is not here")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.parent.name)
def test_a_real_feedstock_is_bumped_up_to_its_downloads(case: Path, tmp_path: Path) -> None:
    root = tree(case, tmp_path / "f")
    path = root.recipe_v1 if root.recipe_v1.is_file() else root.meta
    text = path.read_text()
    name = case.parent.name.partition("-20")[0]
    plan: BumpPlan = limits.run_bounded(lambda: bump.plan_version_bump(root, text, SPELLINGS.get(name, "77.6.5")))
    assert plan.new == SPELLINGS.get(name, "77.6.5").replace("-", ".")
    assert {number % 50 for number in plan.numbers[1]} == {0}
    assert bool(plan.downloads) is (name not in PINNED)
    assert bool(plan.pins) is (name in PINNED)
    assert all("77" in download.source.urls[0] and download.hashes for download in plan.downloads)
    hashes = {literal for download in plan.downloads for literal, _ in download.hashes}
    assert all(re.fullmatch("[0-9a-f]{64}", literal.text) for literal in hashes)
    lines = [line for line in changed_lines(plan).values() if not re.search(r"77|number|build", line)]
    assert lines == []
    following: BumpPlan = limits.run_bounded(lambda: bump.plan_build_bump(root, text))
    assert following.numbers[1] == tuple(number + 1 for number in following.numbers[0])
    assert len(changed_lines(following)) == len(following.edits)
