"""The fresh machines are checked by any Python: before the environment is set up, there is no package to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
def test_the_entry_needs_no_installed_package() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); from tests.fresh_machines.__main__ import exec_in_environment"
    argv = (sys.executable, "-I", "-S", "-c", code, str(ROOT))
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
