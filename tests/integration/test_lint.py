"""Real recipes with one thing wrong each: kiln's ids are those of conda-smithy's linter."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kiln.base import limits
from kiln.feedstock.lint import check
from kiln.recipe import feedstock

pytestmark = pytest.mark.slow("a real recipe is rendered for its lints")

SHARED = Path(__file__).parents[3] / "shared"
ANSWERS = SHARED / "lint" / "expected.json"
EXPECTED: dict[str, dict[str, list[str]]] = json.loads(ANSWERS.read_text()) if ANSWERS.is_file() else {}
CASES = sorted({label.rpartition("/")[0] for label in EXPECTED})
ROOT = Path(__file__).parents[2]
OURS = {"recipe": ROOT, "serving": ROOT / "serving"}
# conda-smithy prints no ids; its messages have them. What it would ask GitHub for is left out.
SMITHY = """\
import json, re, sys
from conda_smithy import lint_recipe
from conda_smithy.linter import hints, messages
from conda_smithy.linter.messages.base import LinterMessage
def id_of(self):
    return str(self.identifier)
LinterMessage.__str__ = LinterMessage.as_string = id_of
for module in vars(messages).values():
    for item in getattr(module, "__dict__", {}).values():
        if isinstance(item, type) and issubclass(item, LinterMessage):
            item.__str__ = item.as_string = id_of
lint_recipe._maintainer_exists = lint_recipe._team_exists = lambda name: True
lint_recipe.load_linter_toml_metadata = lambda *_: {"hints": {}}
hints.get_global_pinning_python_min = lambda: None
lints, more = lint_recipe.main(sys.argv[1], conda_forge=True, return_hints=True)
print(json.dumps(sorted({*map(str, lints), *map(str, more)})))
"""
_NOT_READ = re.compile(r"(?m)^bot:\n(?:[ \t].*\n?)+")  # its schema is not conda-smithy's


def tree(label: str, folder: Path) -> Path:
    """Write the feedstock of a label, such as ``golden/CASE/CHANGE``."""
    kind, case, change = label.split("/")
    shutil.copytree(SHARED / kind / case, folder, ignore=shutil.ignore_patterns("expected", "case.json"))
    for recipe in (SHARED / "lint" / case).glob(f"{change}.*.yaml"):
        target = folder / "recipe" / recipe.name.partition(".")[2]
        target.unlink(missing_ok=True)
        shutil.copyfile(recipe, target)
    settings = folder / "conda-forge.yml"
    if settings.exists():
        text = _NOT_READ.sub("", settings.read_text())
        settings.unlink()
        settings.write_text(text)
    return folder


def ids(folder: Path) -> dict[str, list[str]]:
    """Return the ids of the messages, without kiln's own."""
    messages = limits.run_bounded(lambda: check.check(feedstock.load(folder)))
    return {
        f"{severity}s": sorted(
            {message.id for message in messages if message.severity == severity and not message.id.startswith("kiln-")}
        )
        for severity in ("lint", "hint")
    }


@pytest.mark.skipif(not CASES, reason="shared/lint, the answers of conda-smithy's linter, is not here")
@pytest.mark.parametrize("case", CASES)
def test_a_real_recipe_gets_the_ids_that_conda_smithy_gives(case: str, tmp_path: Path) -> None:
    labels = [label for label in EXPECTED if label.rpartition("/")[0] == case]
    answers = {label: ids(tree(label, tmp_path / label.rpartition("/")[2])) for label in labels}
    expected = {label: {kind: sorted(set(EXPECTED[label][kind])) for kind in ("lints", "hints")} for label in labels}
    assert answers == expected


def documented(name: str) -> set[str]:
    """Return the ids of the messages about this project's recipe in ``name/`` that docs/reference/lint.md explains."""
    page = (ROOT / "docs" / "reference" / "lint.md").read_text()
    table = page.partition("## Messages about this project's recipes")[2]
    rows = re.findall(r"(?m)^\| ([A-Z]+-\d+): (.*?) \|", table)
    # A message that only one of them has names its folder; own workflows are next to recipe/ alone.
    return {id_ for id_, text in rows if name in text or not ("recipe/" in text or "serving/" in text)} - (
        {"CF-005"} if name == "serving" else set()
    )


@pytest.mark.parametrize("name", OURS)
def test_our_recipes_have_only_the_messages_that_the_page_explains(name: str) -> None:
    messages = limits.run_bounded(lambda: check.check(feedstock.load(OURS[name]), of_conda_forge=True))
    found = {message.id for message in messages}
    assert {item for item in found if not item.startswith("kiln-")} == documented(name)
    assert len(documented(name)) >= 3


@pytest.mark.trial
@pytest.mark.needs("conda-smithy")
@pytest.mark.parametrize("name", OURS)
def test_conda_smithys_linter_has_the_same_about_our_recipes(name: str, tmp_path: Path) -> None:
    """By the interpreter of the installed program, on a copy, which has no repository around it."""
    folder = tmp_path / "feedstock"
    ignore = shutil.ignore_patterns("build_artifacts", ".venv*", ".git", "__pycache__", "tests", "serving")
    shutil.copytree(OURS[name], folder, ignore=ignore)
    program = Path(shutil.which("conda-smithy") or "").read_text().splitlines()[0].removeprefix("#!").split()
    words = [*program, "-c", SMITHY, str(folder / "recipe")]
    ended = subprocess.run(words, env=dict(os.environ), text=True, capture_output=True, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert set(json.loads(ended.stdout.splitlines()[-1])) == documented(name)
