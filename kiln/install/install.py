"""Solve for packages on this machine, and install them into a prefix completely or not at all."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from kiln import files, folder_lock, solve_and_install
from kiln.errors import AlreadyRunning, NotWritable, SolveFailed
from kiln.install import cpu_build_diagnosis
from kiln.install.solve_diagnosis import LINES, TargetMachine, explain_failed_solve
from kiln.matchspec_notation import package_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from rattler import PrefixRecord, RepoDataRecord


class PackageAction(str, Enum):
    """The change of a package in the prefix."""

    NEW = "new"
    CHANGED = "changed"
    KEPT = "kept"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRequest:
    """The request to install specs from channels, in order of priority, for a machine, into a prefix.

    ``verbose`` shows the solver's complete message when it fails.
    """

    prefix: Path
    specs: tuple[str, ...]
    channels: tuple[str, ...]
    machine: TargetMachine
    priority: str = "strict"
    verbose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageChange:
    """One package of the prefix; ``was`` is the present build, ``size`` the bytes of the file, 0 when unknown."""

    action: PackageAction
    name: str
    version: str
    build: str
    channel: str
    size: int
    was: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPlan:
    """The plan of an install: every package of the future prefix, and the removed ones.

    ``notes`` say what the user may not expect of the packages.
    """

    request: InstallRequest
    specs: tuple[str, ...]
    records: tuple[RepoDataRecord, ...]
    changes: tuple[PackageChange, ...]
    exists: bool
    notes: tuple[str, ...] = ()

    @property
    def packages_without_sha256(self) -> tuple[str, ...]:
        """The packages without a SHA-256 in the channel's index: an MD5 detects damage, not attacks."""
        return tuple(record.file_name for record in self.records if not record.sha256)

    @property
    def packages_to_link(self) -> tuple[RepoDataRecord, ...]:
        """The packages that are new in the prefix."""
        new = {change.name for change in self.changes if change.action in {PackageAction.NEW, PackageAction.CHANGED}}
        return tuple(record for record in self.records if record.name.normalized in new)

    @property
    def is_up_to_date(self) -> bool:
        """True when the prefix already has all packages."""
        return self.exists and all(change.action is PackageAction.KEPT for change in self.changes)


def plan_install(request: InstallRequest) -> InstallPlan:
    """Solve for the packages; nothing is written.

    Raises:
        SolveFailed: with what the machine or the specs lack, as far as known.
        DownloadFailed: when a channel cannot be reached.
        BrokenIndex: when a channel's index is invalid.
        NotWritable: when the prefix is not a conda prefix.
    """
    _require_prefix_or_new_folder(request.prefix)
    there = solve_and_install.installed_package_records(request.prefix)
    specs = (*request.specs, *previously_requested_specs(there, but=request.specs))
    solve = partial(solve_and_install.solve, request.channels, priority=request.priority)
    try:
        records = solve(specs, virtual_packages=request.machine.virtual_packages, installed=there)
    except SolveFailed as failure:
        most = sys.maxsize if request.verbose else LINES
        raise explain_failed_solve(
            failure, specs, solve, channels=request.channels, machine=request.machine, most=most
        ) from failure
    installation = InstallPlan(
        request=request,
        specs=specs,
        records=tuple(records),
        changes=package_changes(there, records),
        exists=bool(there),
    )
    notes = cpu_build_diagnosis.cpu_build_notes(installation.packages_to_link, specs, solve, request.machine)
    return dataclasses.replace(installation, notes=notes)


def previously_requested_specs(there: Iterable[PrefixRecord], *, but: Sequence[str]) -> tuple[str, ...]:
    """Return the specs that were requested when a prefix was made, except those requested again.

    A prefix without recorded specs keeps every package by its name.
    """
    there = list(there)
    specs = [spec for record in there for spec in _requested_specs_of_package(record)] or [
        record.name.normalized for record in there
    ]
    anew = {package_name(spec) for spec in but}
    return tuple(dict.fromkeys(spec for spec in specs if package_name(spec) not in anew))


def _requested_specs_of_package(package: PrefixRecord) -> Iterable[str]:
    single = [package.requested_spec] if package.requested_spec not in {None, "", "None"} else []
    return [str(spec) for spec in package.requested_specs or single]


def package_changes(there: Iterable[PrefixRecord], records: Iterable[RepoDataRecord]) -> tuple[PackageChange, ...]:
    """Return the changes between the present and the future packages of a prefix, by name."""
    old = {record.name.normalized: record for record in there}
    changed = [_package_change(record, old.pop(record.name.normalized, None)) for record in records]
    removed = [_package_change(record, record, action=PackageAction.REMOVED) for record in old.values()]
    return tuple(sorted((*changed, *removed), key=lambda change: change.name))


def _package_change(
    record: RepoDataRecord, old: PrefixRecord | None, *, action: PackageAction | None = None
) -> PackageChange:
    same = old is not None and (str(old.version), str(old.build)) == (str(record.version), str(record.build))
    return PackageChange(
        action=action or (PackageAction.NEW if old is None else PackageAction.KEPT if same else PackageAction.CHANGED),
        name=record.name.normalized,
        version=str(record.version),
        build=str(record.build),
        channel=str(record.channel or ""),
        size=record.size or 0,
        was=f"{old.version} {old.build}" if old is not None and not same else "",
    )


def execute_install_plan(installation: InstallPlan, *, cache: Path) -> None:
    """Make the prefix, or a changed copy that then replaces it; after a failure it is unchanged.

    The files that killed installs left next to the same prefix are removed, also when nothing is to be installed.

    Raises:
        AlreadyRunning: when another process changes the prefix, or has changed it since the packages were chosen.
        DownloadFailed: when a package cannot be fetched.
        HashMismatch, BrokenPackage: when one does not match its channel's index.
        UnsafePackage: when one has paths outside the prefix; nothing was written there.
        DiskFull: when the disk is full.
        NotWritable: when the prefix cannot be written.
    """
    prefix = installation.request.prefix
    if installation.is_up_to_date:
        folder_lock.remove_leftovers_of_killed_processes(prefix)
        return
    making = files.atomic_folder_change(prefix) if installation.exists else files.atomic_replacement(prefix)
    try:
        with folder_lock.exclusive_folder_lock(prefix) as lock:
            _require_unchanged_prefix(installation)
            with making as part:
                solve_and_install.install(list(installation.records), part, cache=cache, seen_at=str(prefix), lock=lock)
                solve_and_install.record_requested_specs(part, installation.specs)
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise NotWritable(
            f"{error.filename or prefix} cannot be written",
            why=error.strerror or str(error),
            hint="choose another --prefix, or --cache",
        ) from error


def _require_unchanged_prefix(installation: InstallPlan) -> None:
    """Raise AlreadyRunning where another install has changed the prefix since the packages were chosen."""
    request, there = installation.request, solve_and_install.installed_package_records(installation.request.prefix)
    specs = (*request.specs, *previously_requested_specs(there, but=request.specs))
    if specs != installation.specs or package_changes(there, installation.records) != installation.changes:
        raise AlreadyRunning(
            f"another process has changed {request.prefix} since the packages were chosen",
            hint="run the same command again",
        )


def _require_prefix_or_new_folder(prefix: Path) -> None:
    if prefix.is_dir() and not (prefix / "conda-meta").is_dir() and any(prefix.iterdir()):
        raise NotWritable(
            f"{prefix} is not a conda prefix",
            why="the folder is not empty, and has no conda-meta",
            hint="name a new folder, or a prefix",
        )
    if prefix.exists() and not prefix.is_dir():
        raise NotWritable(f"{prefix} is not a folder", hint="name a new folder, or a prefix")
