"""The suite under a caller that ignores Ctrl-C, as nohup does and a script's ``&``: programs of tests receive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sampled

ROOT = Path(__file__).parents[2]
# A test that interrupts a program of its own; "bare" is one without the suite's hooks.
INTERRUPTING = """
import signal, subprocess, sys

def test_it():
    code = "import sys; print(1, flush=True); sys.stdin.read()"
    program = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1)
    program.stdout.read(1)
    program.send_signal(signal.SIGINT)
    program.stdin.close()
    assert program.wait(60) != 0
"""


@pytest.mark.parametrize(("hooks", "passes"), [(("-p", "tests.conftest"), True), ((), False)], ids=["suite", "bare"])
def test_programs_are_interrupted_where_the_caller_ignores_it(
    hooks: tuple[str, ...], passes: bool, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(INTERRUPTING)
    ended = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *hooks, "--rootdir", tmp_path, tmp_path),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (ended.returncode == 0) is passes, ended.stdout + ended.stderr
