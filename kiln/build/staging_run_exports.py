"""Read the run exports of a shared build step's requirements, which outputs take over from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.conda_package import reader
from kiln.errors import BuildFailed
from kiln.model.build_steps import RunExport
from kiln.yamltext import ScalarTypes, parse

if TYPE_CHECKING:
    from pathlib import Path

RENDERED = "info/recipe/rendered_recipe.yaml"


def run_exports_of(package: Path) -> tuple[RunExport, ...]:
    """Return the run exports that the engine has recorded in the package of a build step, without ignored ones.

    Raises:
        BuildFailed: the record is missing.
    """
    with reader.read_members(package) as members:
        text = next((content.read().decode() for member, content in members if content and member.name == RENDERED), "")
    recipe = parse(text, RENDERED, ScalarTypes.TEXT).value
    try:
        depends = recipe["finalized_dependencies"]["run"]["depends"] or []
    except (KeyError, TypeError) as error:
        raise BuildFailed(
            f"{package.name} has no record of its dependencies", hint="--rebuild builds it again"
        ) from error
    return tuple(
        RunExport(spec=str(entry["spec"]), package=str(entry["run_export"]))
        for entry in depends
        if isinstance(entry, dict) and "run_export" in entry
    )
