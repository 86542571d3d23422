"""The run exports that a rehearsal's packages would lack, since it omits the build section of an output."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln.matchspec_notation import package_name
from kiln.model.build_steps import RunExport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.model.rendered import Output

# The strong run exports of build tools that say what a machine must have, by the tools' names; {0} is their version.
# Sources: recipe/meta.yaml of conda-forge/linux-sysroot-feedstock, recipe/recipe.yaml of microarch-level-feedstock.
EXPORTS = {
    "sysroot_linux-64": "__glibc >={0},<3.0.a0",
    "x86_64-microarch-level": "_x86_64-microarch-level >={0}",
}
_VERSION = re.compile(r" (?:[=>]=?)?(\d+(?:\.\d+)*)")


def of_build_section(output: Output) -> Iterator[RunExport]:
    """Yield what the tools in the build section of an output export: the C library and the processor."""
    for spec in output.requirements.build:
        name = package_name(spec)
        version = _VERSION.search(spec)
        if name in EXPORTS and version:
            yield RunExport(spec=EXPORTS[name].format(version[1]), package=name)
