"""A file ends Bazel's client, wherever its script runs, and neither its shutdown nor other programs."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from kiln.base import process_table
from kiln.build.bazel import watch
from tests import waiting

if TYPE_CHECKING:
    from pathlib import Path

# A stand-in for the client: it reports an interrupt as Bazel does, by exit code 8, and ends by itself later.
CLIENT = """\
#!/bin/bash
trap 'echo "$1 interrupted" >>"$REPORT"; exit 8' INT
echo "$1 began" >>"$REPORT"
for _ in {1..200}; do sleep 0.05; [ -e "$REPORT.$1" ] && exit 0; done
"""


@pytest.mark.processes
@pytest.mark.skipif(not process_table.has_proc_files(), reason="processes are read from /proc")
def test_bazels_client_is_interrupted_and_its_shutdown_is_not(tmp_path: Path) -> None:
    client, report = tmp_path / "bazel", tmp_path / "report"
    client.write_text(CLIENT)
    client.chmod(0o755)
    script = tmp_path / "script"
    calls = f"bazel() {{ (exec -a bazel bash {client} $1); }}\ntrap 'bazel shutdown' EXIT\nbazel build\n"
    build = f"{calls}echo $? >>$REPORT\nwait\n"
    script.write_text(watch.interrupt_bazel_lines(tmp_path / "stop") + build)
    process = subprocess.Popen(("bash", str(script)), env={"REPORT": str(report), "PATH": "/usr/bin:/bin"})
    waiting.until(lambda: report.exists() and "build began" in report.read_text(), "the build began", process)
    (tmp_path / "stop").touch()
    waiting.until(lambda: "shutdown began" in report.read_text(), "the shutdown began", process)
    (tmp_path / "report.shutdown").touch()
    assert process.wait(timeout=20) == 0
    assert report.read_text().split("\n")[:4] == ["build began", "build interrupted", "8", "shutdown began"]
    assert "shutdown interrupted" not in report.read_text()


@pytest.mark.processes
def test_the_lines_hold_neither_the_scripts_output_nor_its_wait(tmp_path: Path) -> None:
    script = f"set -eux\n{watch.interrupt_bazel_lines(tmp_path / 'stop')}wait\necho done\n"
    ended = subprocess.run(("bash", "-c", script), capture_output=True, text=True, timeout=10, check=True)
    assert ended.stdout == "done\n"
