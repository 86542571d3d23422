"""Run a config's build on a node of Slurm, and write its result next to its log; the standard library alone is needed.

Slurm starts this with the folder of an attempt, whose job.json has the command and its environment. The folder then has
state.json, report.json and log, as on a worker of the fleet. SIGTERM comes before the time limit's SIGKILL, and to
every process of the job: kiln ends by itself, and the result says that the job was terminated.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESTARTS = 3  # of one job, which Slurm starts again after its node has failed
GRACE = 5.0  # seconds after which a signal to this process alone is passed on


class NodeJob:
    """The build of an attempt, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        self.restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        self.terminated = False
        self.state: dict[str, Any] = {
            "key": self.job["key"],
            "id": os.environ.get("SLURM_JOB_ID", ""),
            "node": os.environ.get("SLURMD_NODENAME", ""),
            "restarts": self.restarts,
            "started": time.time(),
        }

    def run_job(self) -> int:
        """Build, and return the exit code of the job."""
        signal.signal(signal.SIGTERM, self._on_terminate)
        code: int | None = None
        result = f"restarted {self.restarts} times"
        if self.restarts <= RESTARTS:
            self._write_state_file(state="running", ended=None, result=None, exit_code=None)
            status = self._run_build_command()
            if self.terminated or status < 0:
                result = "terminated" if self.terminated else f"signal {-status}"
            else:
                code, result = status, "success" if status == 0 else "exit-code"
        self._write_state_file(state="ended", ended=time.time(), result=result, exit_code=code)
        return 1 if code is None else code

    def _run_build_command(self) -> int:
        """Run the build, and return its exit code, negative for a signal."""
        environment = {**os.environ, **self.job["environment"]}
        with (self.folder / "report.json").open("wb") as report, (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                self.job["argv"], stdin=subprocess.DEVNULL, stdout=report, stderr=log, env=environment
            )
            while True:
                try:
                    return process.wait(timeout=GRACE)
                except subprocess.TimeoutExpired:
                    if self.terminated:
                        process.terminate()

    def _on_terminate(self, *_: object) -> None:
        self.terminated = True

    def _write_state_file(self, **changes: object) -> None:
        """Write the state, unless a later start of the same job has done so: this node was only cut off."""
        path, part = self.folder / "state.json", self.folder / f".state.{self.restarts}.new"
        try:
            if int(json.loads(path.read_text(encoding="utf-8")).get("restarts", 0)) > self.restarts:
                return
        except (OSError, ValueError):
            pass
        part.write_text(json.dumps({**self.state, **changes}), encoding="utf-8")
        part.replace(path)


if __name__ == "__main__":
    sys.exit(NodeJob(Path(sys.argv[1])).run_job())
