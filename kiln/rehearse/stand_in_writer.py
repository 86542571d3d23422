"""The conda packages of stand-ins: scripts that run this machine's programs, its libraries, and activation scripts."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.conda_package.writer import PackageFacts, write_package
from kiln.serialization import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.rehearse.plan_types import StandIn

MAKER = 1  # raise it when the same stand-in gives another package
_NOTE = "this stands in for the channel's package, in rehearsals on the machine that made it"


def stand_in_packages(stand_ins: Iterable[StandIn], folder: Path) -> tuple[Path, ...]:
    """Write the packages of stand-ins into ``folder``, unless they exist, and return their paths.

    Raises:
        KilnError: DiskFull.
    """
    return tuple(_package(stand_in, folder) for stand_in in stand_ins)


def stand_in_metadata(stand_in: StandIn) -> PackageFacts:
    """Return the metadata of a stand-in's package; its build string contains a hash of its content."""
    return PackageFacts(
        name=stand_in.name,
        version=stand_in.version,
        build=f"rehearsal_{_key(stand_in)}_0",
        depends=stand_in.depends,
        about={"summary": f"Stand-in for {stand_in.name}"},
        run_exports={"strong": stand_in.strong_exports} if stand_in.strong_exports else {},
        made_from={"stand_in_for": stand_in.name, "origin": stand_in.origin, "note": _NOTE},
    )


def _key(stand_in: StandIn) -> str:
    status = [(path, Path(path).stat().st_size) for path in stand_in.libraries.values()]
    content = json.dumps([MAKER, to_json(stand_in), status], sort_keys=True)
    return f"h{hashlib.sha256(content.encode()).hexdigest()[:7]}"


def _package(stand_in: StandIn, folder: Path) -> Path:
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
