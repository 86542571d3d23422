"""The run exports that an output has from requirements which are not in its own engine's recipe.

They are those of a shared build step, which outputs take over from it, and those of the build section that a rehearsal
omits.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln.build.solved_pins import RENDERED
from kiln.conda_package import reader
from kiln.errors import BuildFailed
from kiln.matchspec_notation import package_name
from kiln.model.build_and_test_steps import RunExport
from kiln.yamltext import ScalarInterpretation, parse_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kiln.model.rendered import Output

# The strong run exports of build tools that say what a machine must have, by the tools' names; {0} is their version.
# Sources: recipe/meta.yaml of conda-forge/linux-sysroot-feedstock, recipe/recipe.yaml of microarch-level-feedstock.
EXPORTS = {
    "sysroot_linux-64": "__glibc >={0},<3.0.a0",
    "x86_64-microarch-level": "_x86_64-microarch-level >={0}",
}
_VERSION = re.compile(r" (?:[=>]=?)?(\d+(?:\.\d+)*)")


def run_exports_of_package(package: Path) -> tuple[RunExport, ...]:
    """Return the run exports that the engine has recorded in the package of a build step, without ignored ones.

    Raises:
        BuildFailed: the record is missing.
    """
    text = reader.read_info_files(package).get(RENDERED, b"").decode()
    recipe = parse_document(text, RENDERED, ScalarInterpretation.TEXT).value
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


def run_exports_from_build_tools(output: Output) -> Iterator[RunExport]:
    """Yield what the tools in the build section of an output export: the C library and the processor."""
    for spec in output.requirements.build:
        name = package_name(spec)
        version = _VERSION.search(spec)
        if name in EXPORTS and version:
            yield RunExport(spec=EXPORTS[name].format(version[1]), package=name)
