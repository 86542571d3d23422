"""The conda packages that stand in for those of a channel.

Stand-ins are scripts that run this machine's programs, its libraries, and activation scripts. Packages without files
are ``cuda-version``, which ties the CUDA libraries together, the ``-dev`` packages, and those that ask for a level of
the x86-64 processor, as builds with ``x86_64-microarch-level`` do. Source: conda-forge/microarch-level-feedstock, whose
run export is ``_x86_64-microarch-level >=N``, and the names of archspec 0.2.5 in its ``recipe/variants.yaml``.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from kiln.conda_package.writer import PackageMetadata, write_package
from kiln.rehearse import pypi_conda_conversion
from kiln.rehearse.wheel_conversion import CONVERTER, PackageTarget, library_run_exports
from kiln.serialization import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kiln.rehearse.plan_types import LockedWheel, StandIn

MAKER = 1  # raise it when the same stand-in gives another package
_NOTE = "this stands in for the channel's package, in rehearsals on the machine that made it"
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


def write_stand_in_package(stand_in: StandIn, folder: Path) -> Path:
    """Write the package of a stand-in into ``folder``, unless it exists, and return its path.

    Raises:
        KilnError: DiskFull.
    """
    facts = stand_in_metadata(stand_in)
    path = folder / f"{facts.stem}.conda"
    if path.is_file():
        return path
    with write_package(folder, facts) as archive:
        for name, program in sorted(stand_in.programs.items()):
            text = f'#!/bin/sh\nexec {shlex.quote(program)} "$@"\n'
            archive.add_bytes(f"bin/{name}", text.encode(), executable=True)
        for name, library in sorted(stand_in.libraries.items()):
            archive.add_bytes(f"lib/{name}", Path(library).read_bytes(), executable=True)
        if stand_in.activation:
            text = "".join(f"{line}\n" for line in stand_in.activation)
            archive.add_bytes(f"etc/conda/activate.d/{stand_in.name}.sh", text.encode())
    return path


def stand_in_metadata(stand_in: StandIn) -> PackageMetadata:
    """Return the metadata of a stand-in's package; its build string contains a hash of its content."""
    return PackageMetadata(
        name=stand_in.name,
        version=stand_in.version,
        build=f"rehearsal_{_content_key(stand_in)}_0",
        depends=stand_in.depends,
        about={"summary": f"Stand-in for {stand_in.name}"},
        run_exports={"strong": stand_in.strong_exports} if stand_in.strong_exports else {},
        made_from={"stand_in_for": stand_in.name, "origin": stand_in.origin, "note": _NOTE},
    )


def _content_key(stand_in: StandIn) -> str:
    status = [(path, Path(path).stat().st_size) for path in stand_in.libraries.values()]
    content = json.dumps([MAKER, to_json(stand_in), status], sort_keys=True)
    return f"h{hashlib.sha256(content.encode()).hexdigest()[:7]}"


def microarch_level_metadata() -> Iterator[PackageMetadata]:
    """Yield the metadata of each level, which excludes the processors below it by ``__archspec``."""
    for level in (1, *(at + 1 for at in PROCESSORS)):
        lower = "|".join(name for at, processors in PROCESSORS.items() if at < level for name in processors)
        yield PackageMetadata(
            name=NAME,
            version=str(level),
            build="rehearsal_0",
            depends=(f"__archspec 1.* ^(?!({lower})$).*$" if lower else "__archspec 1.*",),
            about={"summary": f"Asks for a processor of level {level} of the x86-64 psABI, or a higher one"},
        )


def cuda_metadata(wheels: Iterable[LockedWheel], target: PackageTarget) -> Iterator[PackageMetadata]:
    """Yield the metadata of ``cuda-version`` and of the ``-dev`` packages of the wheels' libraries; none without CUDA.

    A ``-dev`` package requires its library and has the same ``run_exports`` as conda-forge's; the headers are in the
    library's package.
    """
    if not target.cuda:
        return
    build = f"{target.cuda_tag}_rehearsal_{CONVERTER}"
    yield PackageMetadata(name="cuda-version", version=str(target.cuda), build=build)
    for wheel in wheels:
        row = pypi_conda_conversion.name_mapping(wheel.name)
        if row.exported_by and row.exported_by != row.conda:
            yield PackageMetadata(
                name=row.exported_by,
                version=wheel.version,
                build=build,
                depends=(*target.cuda_requirements, f"{row.conda} =={wheel.version}"),
                run_exports=library_run_exports(wheel.name, Version(wheel.version)),
            )
