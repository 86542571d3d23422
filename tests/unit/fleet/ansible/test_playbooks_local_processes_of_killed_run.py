"""The processes of a killed run are found by its mark, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from kiln.fleet.ansible import playbooks
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.processes
def test_processes_with_the_runs_mark_are_ended_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playbooks, "GRACE", 0.2)
    ours = {**os.environ, playbooks.MARK: str(tmp_path)}
    others = {**os.environ, playbooks.MARK: f"{tmp_path}-2"}
    stubborn = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    with (
        subprocess.Popen(stubborn, env=ours, stdout=subprocess.PIPE) as marked,
        subprocess.Popen(("sleep", "600"), env=others) as other,
    ):
        try:
            assert marked.stdout is not None
            assert marked.stdout.readline() == b"ready\n"
            assert marked.pid in playbooks.find_processes_of_run(tmp_path)
            assert marked.pid in playbooks.end_processes_of_run(tmp_path)
            assert marked.wait(60) == -signal.SIGKILL
            until(
                lambda: not playbooks.find_processes_of_run(tmp_path),
                "the sleep that it had just started is over, too",
            )
            assert other.poll() is None
        finally:
            marked.kill()
            other.kill()
