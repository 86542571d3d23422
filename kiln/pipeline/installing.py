"""Packages for a prefix: chosen for this machine, put there as a whole, and told why not where there are none."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from kiln import channel, files
from kiln.errors import NotWritable, SolveFailed
from kiln.matchspec import package_name
from kiln.pipeline.refusal import LINES, explained

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from rattler import PrefixRecord, RepoDataRecord

    from kiln.pipeline.refusal import Machine

__all__ = ["Action", "Change", "Installation", "Request", "execute", "plan"]


class Action(str, Enum):
    """What happens to a package in the prefix."""

    NEW = "new"
    CHANGED = "changed"
    KEPT = "kept"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for: specs from channels, first ones first, for a machine, in a prefix.

    ``verbose`` wants all that the solver says, where it fails.
    """

    prefix: Path
    specs: tuple[str, ...]
    channels: tuple[str, ...]
    machine: Machine
    flexible: bool = False
    verbose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One package of the prefix; ``was`` is what lies there now, ``size`` the bytes of the file, 0 when unknown."""

    action: Action
    name: str
    version: str
    build: str
    channel: str
    url: str
    sha256: str
    size: int
    was: str = ""

    def as_data(self) -> dict[str, Any]:
        """Return the change for programs."""
        return {name: getattr(self, name) for name in self.__slots__} | {"action": self.action.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What an install will do: every package that the prefix will hold, and those that it loses."""

    request: Request
    asked: tuple[str, ...]
    records: tuple[RepoDataRecord, ...]
    changes: tuple[Change, ...]
    exists: bool

    @property
    def nothing(self) -> bool:
        """Whether the prefix holds all of it already."""
        return self.exists and all(change.action is Action.KEPT for change in self.changes)


def plan(request: Request) -> Installation:
    """Choose the packages; nothing is written.

    Raises:
        SolveFailed: saying what the machine or the specs lack, as far as that can be found out.
        DownloadFailed: when a channel cannot be reached.
        BrokenIndex: when what it has for an index is none.
        NotWritable: when the prefix is a folder of something else.
    """
    _require_prefix(request.prefix)
    there = channel.installed(request.prefix)
    asked = (*request.specs, *remembered(there, but=request.specs))
    try:
        records = channel.solve(
            request.channels,
            asked,
            virtual_packages=request.machine.virtual_packages,
            installed=there,
            flexible=request.flexible,
        )
    except SolveFailed as failure:
        raise explained(
            failure,
            asked,
            channels=request.channels,
            machine=request.machine,
            flexible=request.flexible,
            most=sys.maxsize if request.verbose else LINES,
        ) from failure
    return Installation(
        request=request,
        asked=asked,
        records=tuple(records),
        changes=changes(there, records),
        exists=bool(there),
    )


def remembered(there: Iterable[PrefixRecord], *, but: Sequence[str]) -> tuple[str, ...]:
    """Return what was asked for when a prefix was made, less what is asked for anew.

    A prefix that remembers nothing keeps every package by its name.
    """
    there = list(there)
    said = [spec for each in there for spec in _said(each)] or [each.name.normalized for each in there]
    anew = {package_name(spec.rpartition("::")[2]) for spec in but}
    return tuple(dict.fromkeys(spec for spec in said if package_name(spec.rpartition("::")[2]) not in anew))


def _said(package: PrefixRecord) -> Iterable[str]:
    single = [package.requested_spec] if package.requested_spec not in {None, "", "None"} else []
    return [str(spec) for spec in package.requested_specs or single]


def changes(there: Iterable[PrefixRecord], records: Iterable[RepoDataRecord]) -> tuple[Change, ...]:
    """Compare what a prefix holds with what it is to hold, by name."""
    old = {each.name.normalized: each for each in there}
    found = [_change(record, old.pop(record.name.normalized, None)) for record in records]
    gone = [_change(each, each, action=Action.REMOVED) for each in old.values()]
    return tuple(sorted((*found, *gone), key=lambda change: change.name))


def _change(record: RepoDataRecord, old: PrefixRecord | None, *, action: Action | None = None) -> Change:
    same = old is not None and (str(old.version), str(old.build)) == (str(record.version), str(record.build))
    return Change(
        action=action or (Action.NEW if old is None else Action.KEPT if same else Action.CHANGED),
        name=record.name.normalized,
        version=str(record.version),
        build=str(record.build),
        channel=str(record.channel or ""),
        url=str(record.url),
        sha256=record.sha256.hex() if record.sha256 else "",
        size=record.size or 0,
        was=f"{old.version} {old.build}" if old is not None and not same else "",
    )


def execute(installation: Installation, *, cache: Path) -> None:
    """Make the prefix, or a changed copy of it that then takes its place; after a failure it is as it was.

    Raises:
        DownloadFailed: when a package cannot be fetched.
        HashMismatch, BrokenPackage: when one is not what its channel's index tells of.
        UnsafePackage: when one reaches out of the prefix; nothing was written there.
        DiskFull: when there is no room.
        NotWritable: when the place cannot be written.
    """
    prefix = installation.request.prefix
    if installation.nothing:
        return
    making = files.changing(prefix) if installation.exists else files.replacing(prefix)
    try:
        with making as part:
            channel.install(list(installation.records), part, cache=cache, seen_at=str(prefix))
            channel.remember(part, installation.asked)
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise NotWritable(
            f"{error.filename or prefix} cannot be written",
            why=error.strerror or str(error),
            hint="choose another --prefix, or --cache",
        ) from error


def _require_prefix(prefix: Path) -> None:
    if prefix.is_dir() and not (prefix / "conda-meta").is_dir() and any(prefix.iterdir()):
        raise NotWritable(
            f"{prefix} is a folder of something else",
            why="it is not empty, and has no conda-meta as a prefix has",
            hint="name a folder that is not there yet, or a prefix",
        )
    if prefix.exists() and not prefix.is_dir():
        raise NotWritable(f"{prefix} is no folder", hint="name a folder that is not there yet, or a prefix")
