"""Runs and cells as the JSON values that the ledger keeps beside its columns, and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.model.artifact import Artifact, PackageReport, StepReport, TestReport, Verdict
from kiln.model.compile import CompileReport, Progress
from kiln.model.run import CellRun, CellState, MatrixReport

if TYPE_CHECKING:
    from collections.abc import Mapping

RUN_FIELDS = ("machine", "cores", "jobs", "engine", "container", "image", "rehearsal")
CELL_FIELDS = ("group", "leader", "machine", "estimate", "reason")


def run_detail(report: MatrixReport) -> dict[str, Any]:
    """What of a run stands in no column."""
    return {name: getattr(report, name) for name in RUN_FIELDS}


def run(
    number: int,
    command: str,
    started: float,
    finished: float | None,
    detail: Mapping[str, Any],
    cells: tuple[CellRun, ...],
) -> MatrixReport:
    """A run from its columns and its detail."""
    return MatrixReport(run=number, command=command, started=started, finished=finished, cells=cells, **detail)


def cell_detail(cell: CellRun) -> dict[str, Any]:
    """What of a cell stands in no column."""
    return {
        **{name: getattr(cell, name) for name in CELL_FIELDS},
        "log": None if cell.log is None else str(cell.log),
        "steps": [dataclasses.asdict(step) for step in cell.steps],
        "packages": [package_as_json(package) for package in cell.packages],
    }


def cell(
    config: str,
    state: str,
    started: float | None,
    finished: float | None,
    peak_memory: int | None,
    detail: str,
    *,
    killed: bool,
) -> CellRun:
    """A cell from its columns and its detail; ``killed`` when whoever ran it is gone without a word."""
    told: dict[str, Any] = json.loads(detail)
    stopped = killed and state in {CellState.RUNNING.value, CellState.WAITING.value}
    return CellRun(
        config=config,
        state=CellState.INTERRUPTED if stopped else CellState(state),
        started=started,
        finished=finished,
        peak_memory=peak_memory,
        log=None if told["log"] is None else Path(told["log"]),
        steps=tuple(step(each) for each in told["steps"]),
        packages=tuple(package(each) for each in told["packages"]),
        **{name: told[name] for name in CELL_FIELDS if name in told},  # ledgers of before know no machine
    )


def step(told: Mapping[str, Any]) -> StepReport:
    """A step from JSON values."""
    compiled = told.get("compile")
    fields = {**told, "notes": tuple(told["notes"]), "compile": compiled and CompileReport(**compiled)}
    return StepReport(**fields)


def progress(told: Mapping[str, Any]) -> Progress:
    """How far a compile is, from JSON values, which may hold more."""
    return Progress(**{field.name: told[field.name] for field in dataclasses.fields(Progress)})


def package_as_json(report: PackageReport) -> dict[str, Any]:
    """A package and its tests as JSON values."""
    fields = dataclasses.asdict(report)
    fields["artifact"]["path"] = str(report.artifact.path)
    fields["tests"] = tests_as_json(report.tests)
    return fields


def tests_as_json(report: TestReport) -> dict[str, Any]:
    """What tests said, as JSON values."""
    log = None if report.log is None else str(report.log)
    return {**dataclasses.asdict(report), "verdict": report.verdict.value, "log": log}


def tests(told: Mapping[str, Any]) -> TestReport:
    """What tests said, from JSON values."""
    log = None if told["log"] is None else Path(told["log"])
    return TestReport(**{**told, "verdict": Verdict(told["verdict"]), "notes": tuple(told["notes"]), "log": log})


def package(told: Mapping[str, Any]) -> PackageReport:
    """A package and its tests from JSON values."""
    return PackageReport(
        artifact=Artifact(**{**told["artifact"], "path": Path(told["artifact"]["path"])}),
        tests=tests(told["tests"]),
        build_seconds=told["build_seconds"],
        reused=told["reused"],
    )
