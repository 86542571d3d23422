"""Real feedstocks: kiln's files and outputs are conda-smithy's and conda-build's, by their recorded answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.base.errors import PinningNeeded
from kiln.cli.main import run

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT.parent / "shared" / "golden"
GOLDEN_V1 = GOLDEN.with_name("golden-v1")
CASES, CASES_V1 = (sorted(path.parent.name for path in root.glob("*/case.json")) for root in (GOLDEN, GOLDEN_V1))


@pytest.mark.skipif(not CASES, reason="shared/golden, the reference answers on real feedstocks, is not here")
@pytest.mark.parametrize("case", CASES)
def test_a_real_feedstock_is_rerendered_and_rendered_as_the_reference_tools_do(case: str, tmp_path: Path) -> None:
    argv = [sys.executable, str(GOLDEN / "judge.py"), str(GOLDEN), "--only", case]
    argv += ["--kiln", f"{sys.executable} -m kiln", "--json", str(tmp_path / "figures.json")]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())["totals"]
    assert figures["files_equal"] == figures["files"] > 0
    assert figures["configs_equal"] == figures["configs"]


@pytest.mark.skipif(not CASES_V1, reason="shared/golden-v1, the reference answers on real feedstocks, is not here")
@pytest.mark.parametrize("case", CASES_V1)
def test_a_real_feedstock_with_a_recipe_yaml_is_rerendered_as_by_conda_smithy(case: str, tmp_path: Path) -> None:
    argv = [sys.executable, str(GOLDEN / "judge.py"), str(GOLDEN_V1), "--only", case, "--no-render"]
    argv += ["--kiln", f"{sys.executable} -m kiln", "--json", str(tmp_path / "figures.json")]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())["totals"]
    assert figures["files_equal"] == figures["files"] > 0


@pytest.mark.skipif(not CASES, reason="shared/golden, the reference answers on real feedstocks, is not here")
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "bare"])
@pytest.mark.parametrize("case", CASES)
def test_a_real_feedstock_is_left_as_it_is_without_its_pinning(case: str, committed: bool, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(GOLDEN / case, tree, ignore=shutil.ignore_patterns("expected", "case.json"))
    if committed:
        shutil.copytree(GOLDEN / case / "expected" / "ci_support", tree / ".ci_support", dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    assert run(["-C", str(tree), "rerender", "--pinning-channel", "none"]) == PinningNeeded.exit_code
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before
