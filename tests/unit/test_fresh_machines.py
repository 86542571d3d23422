"""The fresh machines are checked by any Python: before the environment is set up, there is no package to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fresh_machines.check import ON_MACHINE

ROOT = Path(__file__).parents[2]


def test_the_chosen_tests_exist() -> None:
    """Their files are named in a text, which a merge of files can miss."""
    for chosen in ON_MACHINE:
        file, _, test = chosen.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text() if test else (ROOT / file).is_file(), chosen


@pytest.mark.processes
def test_the_entry_needs_no_installed_package() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); from tests.fresh_machines.__main__ import exec_in_environment"
    argv = (sys.executable, "-I", "-S", "-c", code, str(ROOT))
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
