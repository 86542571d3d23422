"""The folder below a step's in which rattler-build keeps a build's prefixes and sources."""

from __future__ import annotations

from pathlib import Path

ENGINE_FOLDER = Path("output", "bld")
UP_TO_STEP = "../../../.."  # from a folder of sources


def host_prefixes(step_folder: Path) -> tuple[Path, ...]:
    """Return the prefixes of the host, which become packages, in a step's folder."""
    return tuple((step_folder / ENGINE_FOLDER).glob("*/host_env*"))


def build_prefixes(step_folder: Path) -> tuple[Path, ...]:
    """Return the prefixes of the machine that builds, in a step's folder."""
    return tuple((step_folder / ENGINE_FOLDER).glob("*/build_env"))


def source_work_folders(step_folder: Path) -> tuple[Path, ...]:
    """Return the folders of the sources, in which scripts run, in a step's folder."""
    return tuple((step_folder / ENGINE_FOLDER).glob("*/work"))
