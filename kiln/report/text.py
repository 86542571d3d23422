"""The report of one cell's run as text, and any report as JSON."""

from __future__ import annotations

import dataclasses
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.console import duration, table
from kiln.model.artifact import Verdict

if TYPE_CHECKING:
    from kiln.model.artifact import PackageReport, RunReport
    from kiln.model.run import MatrixReport


def as_json(report: RunReport | MatrixReport) -> dict[str, Any]:
    """Return the report as plain JSON values; times are in seconds, sizes in bytes."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(report))
    return plain


def as_text(report: RunReport) -> str:
    """Return the report as a person wants it: the packages, then where they lie and how to install them."""
    header = ("package", "version", "build string", "size", "built", "tests", "tested")
    rows = [_row(package) for package in report.packages]
    kind = "rehearsal" if report.rehearsal else "build"
    lines = [
        table(header, rows, right=(3,)),
        "",
        *_notes(report),
        f"The {kind} of {report.config} took {duration(report.seconds)}.",
        f"channel  {report.channel}",
        f"install  {report.install}",
    ]
    if report.rehearsal:
        lines.append("These packages are a rehearsal: their compiled parts are upstream's. They cannot be released.")
    return "\n".join(lines)


def _row(package: PackageReport) -> tuple[str, ...]:
    artifact, tests = package.artifact, package.tests
    told = f"{tests.commands} {tests.verdict.value}" if tests.verdict is not Verdict.NONE else tests.verdict.value
    built = "found" if package.reused else duration(package.build_seconds)
    tested = duration(tests.seconds) if tests.commands else ""
    size = files.size_text(artifact.size)
    return (artifact.name, artifact.version, artifact.build_string, size, built, told, tested)


def _notes(report: RunReport) -> list[str]:
    told = [(package.tests.package, note) for package in report.packages for note in package.tests.notes]
    return [f"{package}: {note}" for package, note in told] + [""] * bool(told)


def _plain(value: Any) -> Any:
    """Turn paths, enumerations and tuples into what JSON has."""
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case Enum():
            return value.value
        case Path():
            return str(value)
        case _:
            return value
