"""conda-forge's global pinning, fetched as a package from a channel: the newest one, or a version.

conda-smithy expands each feedstock with the newest package conda-forge-pinning. Its content, a variant file and the
migrations in force, is kept in a folder for each version, so a version is fetched once.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import files, solve_and_install
from kiln.errors import DownloadFailed, PinningNeeded, SolveFailed

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = "conda-forge-pinning"
NO_CHANNEL = "none"
VERSION = re.compile(r"\d{4}(\.\d{1,2}){2,5}")  # the time at which a pinning was made
FRESH = 3600  # seconds for which the newest version is not asked for again
_FILE = "conda_build_config.yaml"
_NEWEST = "newest.json"
_WAIT = 300.0  # seconds for another process that fetches the same version


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinning:
    """A fetched pinning: its version, and its variant file."""

    version: str
    file: Path


def newest_pinning(folder: Path, channel: str) -> Pinning:
    """Return the newest pinning in a channel; within an hour the channel is not asked again.

    Raises:
        PinningNeeded: the channel cannot be reached, or has none; it names the newest one that was fetched before.
    """
    home = _channel_folder(folder, channel)
    version = _version_checked_recently(home / _NEWEST)
    if version and (home / version / _FILE).is_file():
        return Pinning(version=version, file=home / version / _FILE)
    pinning = _fetch_or_raise_unavailable(home, channel, PACKAGE, f"the newest {PACKAGE}")
    files.write_text(home / _NEWEST, json.dumps({"version": pinning.version}))
    return pinning


def pinning_of_version(folder: Path, channel: str, version: str) -> Pinning:
    """Return a version of the pinning; one that was fetched before needs no network.

    Raises:
        PinningNeeded: the channel cannot be reached, or does not have it.
    """
    home = _channel_folder(folder, channel)
    if (home / version / _FILE).is_file():
        return Pinning(version=version, file=home / version / _FILE)
    return _fetch_or_raise_unavailable(home, channel, f"{PACKAGE} =={version}", f"{PACKAGE} {version}")


def version_of_pinning_file(file: Path) -> str:
    """Return the version of the installed or unpacked package that has a variant file; empty where none is recorded."""
    folder = file.parent
    for record in (*folder.glob(f"conda-meta/{PACKAGE}-*.json"), folder / "info" / "index.json"):
        try:
            content = json.loads(record.read_bytes())
            name, version = content["name"], content["version"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if name == PACKAGE and isinstance(version, str) and VERSION.fullmatch(version):
            return version
    return ""


def _channel_folder(folder: Path, channel: str) -> Path:
    """Return the folder of a channel's pinnings, whose name contains nothing of the channel's URL."""
    return folder / hashlib.sha256(channel.encode()).hexdigest()[:12]


def _version_checked_recently(path: Path) -> str:
    """Return the version that was the newest less than an hour ago, empty when it has to be asked for."""
    try:
        age = time.time() - path.stat().st_mtime
        version = json.loads(path.read_bytes())["version"] if 0 <= age < FRESH else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return version if isinstance(version, str) and VERSION.fullmatch(version) else ""


def _fetch_or_raise_unavailable(home: Path, channel: str, spec: str, title: str) -> Pinning:
    try:
        return _fetch_pinning(home, channel, spec)
    except (DownloadFailed, SolveFailed) as error:
        versions = sorted(
            (path.parent.name for path in home.glob(f"*/{_FILE}") if VERSION.fullmatch(path.parent.name)),
            key=lambda version: tuple(map(int, version.split("."))),
        )
        earlier = f"-e {versions[-1]}, which was fetched before; or " if versions else ""
        why = "; ".join(filter(None, (error.what, *error.why.splitlines())))
        hint = f"{earlier}-e PINNING/{_FILE}; or --no-pinning"
        raise PinningNeeded(f"cannot fetch {title} from {channel}", why=why, hint=hint) from error


def _fetch_pinning(home: Path, channel: str, spec: str) -> Pinning:
    records = solve_and_install.solve([channel], [spec], virtual_packages={})
    version = next(str(record.version) for record in records if record.name.normalized == PACKAGE)
    if not VERSION.fullmatch(version):
        raise PinningNeeded(f"{PACKAGE} in {channel} has the version {version}", hint="-e FILE")
    prefix = home / version
    if not (prefix / _FILE).is_file():
        solve_and_install.install_atomically(
            records, prefix, replaced=solve_and_install.folder_identity(prefix), wait=_WAIT
        )
    if not (prefix / _FILE).is_file():
        raise PinningNeeded(f"{PACKAGE} {version} has no {_FILE}", hint="-e FILE")
    return Pinning(version=version, file=prefix / _FILE)
