"""The linters of workflows find nothing in those of this project, nor in any that kiln writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflow_variants import written

ROOT = Path(__file__).parents[2]


def program(name: str) -> str:
    """Return a linter, of the environment or of this machine."""
    own = Path(sys.executable).with_name(name)
    path = str(own) if own.exists() else shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not on this machine")
    return path


def lint(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), env=os.environ, capture_output=True, text=True, check=False)


def test_zizmor_finds_nothing(tmp_path: Path) -> None:
    folders = [ROOT / ".github", *(folder.parent for folder in written(tmp_path).values())]
    ended = lint(program("zizmor"), "--offline", "--no-progress", "--persona", "regular", *folders)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_actionlint_finds_nothing_but_what_is_broken(tmp_path: Path) -> None:
    folders = [ROOT / ".github" / "workflows", *written(tmp_path).values()]
    files = [path for folder in folders for path in sorted(folder.glob("*.yml"))]
    shellcheck = ("-shellcheck", program("shellcheck"), "-ignore", "label .* is unknown")  # a feedstock's own labels
    words = (program("actionlint"), "-no-color", "-pyflakes", "", *shellcheck)
    ended = lint(*words, *files)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for right, wrong in (
        ("needs: job-1", "needs: job-9"),
        ("steps.build.outputs", "steps.compile.outputs"),
        ("inputs.config }}", "inputs.konfig }}"),
        ("timeout-minutes: 360", "timeout-minutes: long"),
        ('build-locally.py "$CONFIG"', "build-locally.py $CONFIG"),  # shellcheck's
    ):
        text = (folders[2] / "build-chain.yml").read_text()
        assert right in text
        (tmp_path / "broken.yml").write_text(text.replace(right, wrong, 1))
        assert lint(*words, tmp_path / "broken.yml").returncode == 1, wrong
