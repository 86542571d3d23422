"""Packages without files that ask for a level of the x86-64 processor, as builds with ``x86_64-microarch-level`` do.

Source: conda-forge/microarch-level-feedstock, whose run export is ``_x86_64-microarch-level >=N``, and the names of
archspec 0.2.5 in its ``recipe/variants.yaml``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.conda_package.writer import PackageFacts, write_metadata_package

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "_x86_64-microarch-level"
# The processors that archspec knows, by the highest level of the x86-64 psABI that they have. Those of level 4 are not
# listed: a name that is unknown here is that of a newer processor.
PROCESSORS = {
    1: ("x86_64", "nocona", "core2", "k10"),
    2: (
        *("x86_64_v2", "nehalem", "westmere", "sandybridge", "ivybridge"),
        *("bulldozer", "piledriver", "steamroller"),
    ),
    3: (
        *("x86_64_v3", "haswell", "broadwell", "skylake", "mic_knl", "cannonlake", "excavator"),
        *("zen", "zen2", "zen3"),
    ),
}


def processor_packages(folder: Path) -> tuple[Path, ...]:
    """Write the package of each level into ``folder``, unless it exists, and return their paths."""
    return tuple(write_metadata_package(folder, facts) for facts in level_metadata())


def level_metadata() -> Iterator[PackageFacts]:
    """Yield the metadata of each level, which excludes the processors below it by ``__archspec``."""
    for level in (1, *(at + 1 for at in PROCESSORS)):
        lower = "|".join(name for at, processors in PROCESSORS.items() if at < level for name in processors)
        yield PackageFacts(
            name=NAME,
            version=str(level),
            build="rehearsal_0",
            depends=(f"__archspec 1.* ^(?!({lower})$).*$" if lower else "__archspec 1.*",),
            about={"summary": f"Asks for a processor of level {level} of the x86-64 psABI, or a higher one"},
        )
