"""The external repositories that the sources of a step declare for Bazel, recorded before the sources are removed."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.bazel.declaring_file_search import read_declaring_files
from kiln.build.rattler_build_paths import source_work_folders
from kiln.errors import KilnError

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.provenance import ExternalRepository

FILE = "external_repositories.json"  # in a step's folder


def write_repository_record(step_folder: Path) -> None:
    """Write what the sources in a step's work folders declare; a build does not fail for what they declare."""
    try:
        declared = [item for folder in source_work_folders(step_folder) for item in _declared_repositories(folder)]
    except KilnError as error:
        sys.stdout.write(f"the external repositories of the sources are not recorded: {error}\n")
        declared = []
    if declared:
        from kiln.serialization import to_json

        files.write_text(step_folder / FILE, json.dumps(to_json(declared)))


def read_repository_record(step_folder: Path) -> list[dict[str, Any]]:
    """Return what was recorded of a step, as JSON values."""
    file = step_folder / FILE
    values: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return values


def merged_repositories(*declared: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the repositories of several steps, of each name the first."""
    by_name: dict[str, dict[str, Any]] = {}
    for item in (item for values in declared for item in values):
        by_name.setdefault(item["name"], item)
    return list(by_name.values())


def _declared_repositories(folder: Path) -> tuple[ExternalRepository, ...]:
    contents = read_declaring_files(folder)
    if not contents:
        return ()
    from kiln import limits  # few sources declare any
    from kiln.bazel.declared_repositories import external_repositories

    return limits.run_bounded(lambda: external_repositories(contents))
