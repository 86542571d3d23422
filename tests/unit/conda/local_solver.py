"""rattler's solver over the index of a small channel in a folder, in this process."""

from __future__ import annotations

import asyncio
import atexit
import json
from typing import TYPE_CHECKING, Any

import rattler
from rattler.exceptions import SolverError

from kiln.base.errors import SolveFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kiln.conda.diagnosis import Solver
    from kiln.conda.solve import VirtualPackages


# Made on import, before the guard of unit tests: on Windows a loop consists of a pair of sockets.
LOOP = asyncio.new_event_loop()
atexit.register(LOOP.close)


def package(name: str, version: str, build: str, *depends: str, number: int = 0) -> dict[str, Any]:
    """Return the entry of a package in an index."""
    entry = {"name": name, "version": version, "build": build, "build_number": number, "depends": list(depends)}
    return {**entry, "subdir": "linux-64", "md5": "0" * 32, "sha256": "0" * 64, "size": 1}


def local_solver(folder: Path, *packages: dict[str, Any]) -> Solver:
    """Return a solver of specs over packages, with the errors of `kiln.conda.solve.solve`."""
    entries = {f"{entry['name']}-{entry['version']}-{entry['build']}.conda": entry for entry in packages}
    index = folder / "repodata.json"
    index.write_text(json.dumps({"info": {"subdir": "linux-64"}, "packages": {}, "packages.conda": entries}))
    repodata = rattler.SparseRepoData(rattler.Channel(folder.as_uri()), "linux-64", str(index))

    def solve(specs: Sequence[str], *, virtual_packages: VirtualPackages) -> list[rattler.RepoDataRecord]:
        machine = [
            rattler.GenericVirtualPackage(
                rattler.PackageName(name), rattler.Version(version), rattler.BuildString(build)
            )
            for name, (version, build) in virtual_packages.items()
        ]

        async def records() -> list[rattler.RepoDataRecord]:
            return await rattler.solve_with_sparse_repodata(list(specs), [repodata], virtual_packages=machine)

        try:
            return LOOP.run_until_complete(records())
        except SolverError as error:
            raise SolveFailed("nothing satisfies the specs", why=str(error)) from error

    return solve
