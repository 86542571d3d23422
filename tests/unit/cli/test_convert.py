"""``kiln convert`` shows the proof, and writes only where it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import ConversionRefused, UsageError
from kiln.cli import convert
from kiln.cli.main import make_pasteable, run
from kiln.feedstock.convert.proof import Difference
from tests import builders
from tests.builders import PINNING
from tests.unit.feedstock.convert.feedstocks import conversion, expected

if TYPE_CHECKING:
    from kiln.recipe.feedstock import Feedstock

ROOT = Path(__file__).parents[3]
SPLIT = (
    "package:\n  name: a\n  version: '1'\noutputs:\n  - name: b\n    requirements:\n      build:\n        - python\n"
    "  - name: c\n    requirements:\n      host:\n        - python\n      run:\n        - python\n"
)


def differing(folder: Path) -> Feedstock:
    """Return a feedstock of which conda-build makes fewer packages than rattler-build."""
    feedstock = builders.feedstock(folder, SPLIT, "python:\n  - 3.11.*\n  - 3.12.*\n")
    assert run(["-C", str(folder), "rerender"]) == 0
    return feedstock


def test_the_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = conversion("single", tmp_path / "a")
    assert run(["-C", str(feedstock.root), "convert"]) == 0
    printed = capsys.readouterr()
    assert feedstock.recipe_v1.read_text() == expected("single")
    assert feedstock.meta.is_file()
    assert "meta.yaml and recipe.yaml render to the same: 14 configs, 14 packages" in printed.out
    assert make_pasteable("kiln rerender", feedstock.root) in printed.err
    assert run(["-C", str(feedstock.root), "convert"]) == ConversionRefused.exit_code


@pytest.mark.parametrize("option", ["--check", "--print"])
def test_nothing_is_written(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = conversion("single", tmp_path / "a")
    forge = (feedstock.root / "conda-forge.yml").read_text()
    assert run(["-C", str(feedstock.root), "convert", option]) == 0
    printed = capsys.readouterr()
    assert not feedstock.recipe_v1.exists()
    assert (feedstock.root / "conda-forge.yml").read_text() == forge
    assert (printed.out == expected("single")) is (option == "--print")
    assert "render to the same" in (printed.err if option == "--print" else printed.out)


def test_a_difference_is_shown_and_keeps_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = differing(tmp_path)
    assert run(["-C", str(tmp_path), "convert"]) == ConversionRefused.exit_code
    printed = capsys.readouterr()
    assert not feedstock.recipe_v1.exists()
    assert "b: requirements/build  (linux_64_)\n  - python 3.12.*\n  + python 3.11.*\n" in printed.out
    assert "recipe.yaml would not render to the same" in printed.err


def test_the_proof_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    differing(tmp_path)
    capsys.readouterr()
    assert run(["-C", str(tmp_path), "convert", "--json", "--check"]) == ConversionRefused.exit_code
    proof = json.loads(capsys.readouterr().out)
    assert (proof["holds"], proof["configs"]) == (False, 1)
    assert ("b", "requirements/build") in [(item["package"], item["what"]) for item in proof["differences"]]


def test_a_key_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = "package:\n  name: a\n  version: '1'\nabout:\n  summary: s\n  doc_source_url: d\n"
    feedstock = builders.feedstock(tmp_path, meta)
    words = ["-C", str(tmp_path), "convert", "-e", str(PINNING)]
    assert run(words) == ConversionRefused.exit_code
    assert "recipe/meta.yaml:6:1" in capsys.readouterr().err
    assert run([*words, "--leave-out", "about/doc_source_url"]) == 0
    assert "doc_source_url" not in feedstock.recipe_v1.read_text()


def test_a_missing_pinning_is_refused(tmp_path: Path) -> None:
    builders.feedstock(tmp_path, SPLIT)
    assert run(["-C", str(tmp_path), "convert", "-e", str(tmp_path / "pin")]) == UsageError.exit_code


def test_long_differences_are_shortened() -> None:
    result = Difference(package="a", what="b", old="x" * 1000, new="nothing", configs=("one", "two", "three"))
    head, old, new = convert.difference_lines(result)
    assert head == "a: b  (one and 2 more)"
    assert old.endswith("xxx ...")
    assert new == "  + nothing"


@pytest.mark.parametrize(("folder", "proven"), [("", "36 configs, 232 packages"), ("serving", "4 configs, 6 packages")])
def test_the_projects_own_recipes_are_converted_with_the_proof_that_the_documentation_names(
    capsys: pytest.CaptureFixture[str], folder: str, proven: str
) -> None:
    assert run(["-C", str(ROOT / folder), "convert", "--check"]) == 0
    assert f"render to the same: {proven}" in capsys.readouterr().out
    assert f"({proven})" in (ROOT / "docs" / "how-to" / "convert.md").read_text()
