"""What was rehearsed as text, and any run as JSON."""

from __future__ import annotations

import dataclasses
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.console import duration, table
from kiln.model.artifact import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.model.artifact import PackageReport
    from kiln.model.run import CellRun, MatrixReport


SPEC = "tensorflow"  # what a person who rehearses wants installed


def as_json(report: MatrixReport) -> dict[str, Any]:
    """Return the report as plain JSON values; times are in seconds, sizes in bytes."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(report))
    return plain


def rehearsal_text(report: MatrixReport) -> str:
    """Return the rehearsed cells as a person wants them: packages, where they lie and how to install them."""
    cells = [cell for cell in report.cells if cell.packages]
    return "".join(f"\n{line}\n" for cell in cells for line in ("\n".join(_rehearsed(cell)),))


def _rehearsed(cell: CellRun) -> Iterator[str]:
    header = ("package", "version", "build string", "size", "built", "tests", "tested")
    yield table(header, [_row(package) for package in cell.packages], right=(3,))
    yield ""
    yield from _notes(cell)
    seconds = cell.finished - cell.started if cell.started and cell.finished else None
    yield f"The rehearsal of {cell.config} " + ("was found." if seconds is None else f"took {duration(seconds)}.")
    channel = cell.packages[0].artifact.path.parents[1]
    yield f"channel  {channel}"
    yield f"install  conda create -n {SPEC} --override-channels -c {channel.absolute().as_uri()} {SPEC}"
    yield "These packages are a rehearsal: their compiled parts are upstream's. They cannot be released."


def _row(package: PackageReport) -> tuple[str, ...]:
    artifact, tests = package.artifact, package.tests
    told = f"{tests.commands} {tests.verdict.value}" if tests.verdict is not Verdict.NONE else tests.verdict.value
    built = "found" if package.reused else duration(package.build_seconds)
    tested = duration(tests.seconds) if tests.commands else ""
    size = files.size_text(artifact.size)
    return (artifact.name, artifact.version, artifact.build_string, size, built, told, tested)


def _notes(cell: CellRun) -> list[str]:
    told = [(package.tests.package, note) for package in cell.packages for note in package.tests.notes]
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
