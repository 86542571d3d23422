"""What comes home from a machine: looked at as a stranger's, and let in only when it is what was built there."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.errors import BrokenPackage, HashMismatch
from kiln.fleet.orders import Home
from kiln.ledger import records

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.artifact import PackageReport

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.!+~-]*\.conda")
LONGEST = 2000  # characters of what a build said last
SUBDIRS = ("linux-64", "noarch")
WHEEL = re.compile(r"wheels/(?:cpu|cuda\d+(?:\.\d+)*)/[A-Za-z0-9_][A-Za-z0-9_.+-]*\.whl")


def read(folder: Path, *, machine: str, config: str) -> Home:
    """Return what the folder of a collected cell holds, each package's hash that of the machine's report.

    Raises:
        HashMismatch: when a package is not the one that was built.
        BrokenPackage: when the report is none, or tells of files that it has no business with.
    """
    if (reason := _failed_without_report(folder)) is not None:
        return Home(machine=machine, config=config, log=_log(folder, config), reason=reason)
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        (cell,) = [each for each in report["cells"] if each["config"] == config]
        packages = tuple(_package(folder, told) for told in cell["packages"])
        steps = tuple(records.step(step) for step in cell["steps"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BrokenPackage(f"{machine} sent no report of {config} that can be read", why=why) from error
    return Home(
        machine=machine,
        config=config,
        packages=packages,
        steps=steps,
        peak_memory=cell.get("peak_memory"),
        log=_log(folder, config),
        reason=str(cell.get("reason", "")),
    )


def _failed_without_report(folder: Path) -> str | None:
    """Why a build failed that could not even report: what it said last. None for one that has reported, or should."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if (folder / "report.json").read_text(encoding="utf-8").strip():
            return None
        if json.loads((folder / "state.json").read_text(encoding="utf-8")).get("exit_code") == 0:
            return None
        said = (folder / "log").read_text(encoding="utf-8", errors="replace")[-LONGEST:].strip()
        return said[said.rfind("error: ") :].removeprefix("error: ") if "error: " in said else said
    return None


def _log(folder: Path, config: str) -> Path | None:
    """The cell's own log, the latest that there is, else what kiln said there."""
    logs = [log for log in sorted((folder / "logs").glob(f"*/{config}.log")) if not log.is_symlink()]
    return next((log for log in (*reversed(logs), folder / "log") if log.is_file()), None)


def _package(folder: Path, told: dict[str, Any]) -> PackageReport:
    """A package of the report, where it lies here."""
    report = records.package(told)
    artifact = report.artifact
    is_package = artifact.subdir in SUBDIRS and NAME.fullmatch(artifact.path.name)
    if not (is_package or WHEEL.fullmatch(f"{artifact.subdir}/{artifact.path.name}")):
        raise BrokenPackage(f"{artifact.subdir}/{artifact.path.name} is no name of a package")
    path = folder / "packages" / artifact.subdir / artifact.path.name
    if path.is_symlink() or not path.is_file():
        raise HashMismatch(f"{path.name} did not come", why=f"the machine's report has it, {path.parent} has not")
    found = files.sha256(path)
    if found != artifact.sha256:
        raise HashMismatch(f"{path.name} came broken", why=f"its hash is {found}, not {artifact.sha256}")
    tests = dataclasses.replace(report.tests, log=None)
    return dataclasses.replace(report, artifact=dataclasses.replace(artifact, path=path), tests=tests)


def kept(home: Home, packages: tuple[PackageReport, ...]) -> Home:
    """Return what came home with its packages where they lie now."""
    return dataclasses.replace(home, packages=packages)
