"""The run that tests of the ledger record, in a module that processes of tests can import without pytest."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from kiln.model.build_results import Artifact, PackageReport, StepReport, TestReport, TestVerdict
from kiln.model.run import ConfigRun, ConfigState, MatrixReport

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
