"""Convert runs and configs to the JSON values that the ledger keeps next to its columns, and back."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, TypeVar

from kiln.base.serialization import from_json_values, to_json
from kiln.conda.provenance.records import ExternalRepository, ResolvedPackage
from kiln.state.results import (
    Artifact,
    CompileReport,
    ConfigRun,
    ConfigState,
    ControllerCharge,
    MatrixReport,
    PackageReport,
    Phase,
    Progress,
    RunCost,
    StepReport,
    TestReport,
    TestVerdict,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RUN_COLUMNS = ("id", "command", "started", "finished", "detail")
CONFIG_COLUMNS = ("config", "state", "started", "finished", "peak_memory", "detail")
# The fields without a column, which the detail has; configs have rows of their own.
RUN_FIELDS = sorted({field.name for field in dataclasses.fields(MatrixReport)} - {"run", "configs", *RUN_COLUMNS})
CONFIG_FIELDS = sorted({field.name for field in dataclasses.fields(ConfigRun)} - {*CONFIG_COLUMNS})
KINDS = (
    *(Artifact, CompileReport, ConfigRun, ConfigState, ControllerCharge, ExternalRepository),
    *(PackageReport, Phase, ResolvedPackage, RunCost, StepReport, TestReport, TestVerdict),
)
Record = TypeVar("Record")


def detail_column_json(record: MatrixReport | ConfigRun) -> str:
    """Return the detail of a run or a config: its `RUN_FIELDS` or `CONFIG_FIELDS`."""
    names = RUN_FIELDS if isinstance(record, MatrixReport) else CONFIG_FIELDS
    return json.dumps({name: getattr(record, name) for name in names}, default=to_json)


def run_from_columns(row: Sequence[Any], configs: tuple[ConfigRun, ...]) -> MatrixReport:
    """Return a run from its `RUN_COLUMNS`."""
    columns = dict(zip(("run", *RUN_COLUMNS[1:]), row, strict=True))
    detail = json.loads(columns.pop("detail"))
    return dataclasses.replace(record_from_json(MatrixReport, {**columns, **detail}), configs=configs)


def config_from_columns(row: Sequence[Any], *, killed: bool) -> ConfigRun:
    """Return a config from its `CONFIG_COLUMNS`; ``killed`` when the process that ran it is gone."""
    columns = dict(zip(CONFIG_COLUMNS, row, strict=True))
    fields: dict[str, Any] = json.loads(columns.pop("detail"))
    if killed and columns["state"] in {ConfigState.RUNNING.value, ConfigState.WAITING.value}:
        columns["state"] = ConfigState.INTERRUPTED.value
    required = {name: fields[name] for name in ("log", "steps", "packages")}
    optional = {name: fields[name] for name in CONFIG_FIELDS if name in fields}  # older ledgers have fewer
    return record_from_json(ConfigRun, {**required, **optional, **columns})


def record_from_json(kind: type[Record], data: Any) -> Record:
    """Return a record of a run from JSON values."""
    return from_json_values(kind, data, KINDS)


def progress_from_json(data: Mapping[str, Any]) -> Progress:
    """Return the progress of a compile from JSON values, which may hold more."""
    return from_json_values(Progress, {field.name: data[field.name] for field in dataclasses.fields(Progress)})
