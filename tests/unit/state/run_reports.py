"""The run that tests of the ledger record, and processes that record it, which import no pytest."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

from kiln.state.results import (
    Artifact,
    ConfigRun,
    ConfigState,
    MatrixReport,
    PackageReport,
    StepReport,
    TestReport,
    TestVerdict,
)

ROOT = Path(__file__).parents[3]
PACKAGE = PackageReport(
    artifact=Artifact(
        path=Path("/c/linux-64/a-1-h_0.conda"),
        sha256="5" * 64,
        size=7,
        config="a",
        name="a",
        version="1",
        build_string="h_0",
        subdir="linux-64",
    ),
    build_seconds=1.5,
    reused=False,
    tests=TestReport(package="a", verdict=TestVerdict.PASSED, commands=2, notes=("x",), log=Path("/l")),
)
A = ConfigRun(config="a", state=ConfigState.WAITING, group="cuda12.9", cold=True, estimate=4.0)
B = ConfigRun(config="b", state=ConfigState.WAITING, group="cpu")
DONE = dataclasses.replace(
    A,
    state=ConfigState.DONE,
    started=10.0,
    finished=15.0,
    peak_memory=1 << 20,
    log=Path("/logs/a.log"),
    steps=(StepReport(title="build a", seconds=2.0, notes=("n",), failed=True),),
    packages=(PACKAGE,),
)
RUN = MatrixReport(
    run=0,
    command="kiln build --all",
    started=9.0,
    finished=None,
    machine="m",
    cores=2,
    jobs=2,
    engine="rattler-build",
    container="docker",
    commit="0123456",
    remote_url="https://git.example/x",
    kiln_version="0.1.0",
    ci_url="https://git.example/x/actions/runs/1",
    configs=(A, B),
)

WRITER = """
import dataclasses, sys
from pathlib import Path
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import ConfigState
from tests.unit.state.run_reports import A, RUN
ledger = Ledger(Path(sys.argv[1]))
number = ledger.begin_run(dataclasses.replace(RUN, configs=()))
print(number, flush=True)
for count in range(int(sys.argv[2])):
    config = dataclasses.replace(A, state=ConfigState.RUNNING, config=f"c{count}")
    ledger.update_config(number, config)
    print(count, flush=True)
"""


def writer(path: Path, changes: int) -> subprocess.Popen[str]:
    """Start a process that records a run with changes, and prints the run's number and then each change's."""
    argv = (sys.executable, "-c", WRITER, str(path), str(changes))
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT)})
