"""Real recipes with one thing wrong each: kiln's ids are those of conda-smithy's linter."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from kiln import feedstock_loader, limits, lint

SHARED = Path(__file__).parents[3] / "shared"
ANSWERS = SHARED / "lint" / "expected.json"
EXPECTED: dict[str, dict[str, list[str]]] = json.loads(ANSWERS.read_text()) if ANSWERS.is_file() else {}
CASES = sorted({label.rpartition("/")[0] for label in EXPECTED})
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
    messages = limits.bounded(lambda: lint.check(feedstock_loader.find(folder)))
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
