from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from kiln.build.engine import scripts
from kiln.recipe.rendered import Source
from tests.unit.build.engine.test_scripts import run, written

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.processes
@pytest.mark.needs("git")
@pytest.mark.parametrize("own", [False, True])
def test_the_mark_of_a_checkout_is_removed_unless_the_repository_has_it(tmp_path: Path, own: bool) -> None:
    written(tmp_path, "src/.ok")
    subprocess.run(("git", "init", "-q", "src"), cwd=tmp_path, check=True)
    if own:
        subprocess.run(("git", "-C", "src", "add", ".ok"), cwd=tmp_path, check=True)
    source = Source(git_url="https://g", folder="src")
    assert run(tmp_path, scripts.remove_checkout_marks_lines((source,))).returncode == 0
    assert (tmp_path / "src" / ".ok").exists() is own
