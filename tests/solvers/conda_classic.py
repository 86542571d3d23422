"""Solves with conda's classic solver; run by a Python that has conda, and says what ``libsolv.c`` says.

Arguments: strict or flexible, a file of virtual packages, then repodata.json of each channel, then "--" and specs.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conda.base.context import context
from conda.exceptions import CondaError
from conda.models.channel import Channel
from conda.models.enums import PackageType
from conda.models.match_spec import MatchSpec
from conda.models.records import PackageRecord
from conda.resolve import Resolve

if TYPE_CHECKING:
    from collections.abc import Iterator


def main(priority: str, machine: str, *rest: str) -> None:
    """Print ``name version build`` of each package, or ``refused`` and the reasons."""
    context.__init__(argparse_args={"channel_priority": priority, "solver": "classic", "quiet": True})
    files, specs = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    channels = {file: Channel(Path(file).parents[1].as_uri()) for file in files}
    records = [record for file, channel in channels.items() for record in read(file, channel)]
    records += read(machine, Channel("@"), package_type=PackageType.VIRTUAL_SYSTEM)
    solver = Resolve({record: record for record in records}, channels=list(channels.values()))
    try:
        with contextlib.redirect_stdout(sys.stderr):  # conda prints its progress there, too
            result = solver.solve([MatchSpec(spec) for spec in specs])
    except CondaError as error:
        print("refused", error, sep="\n")
        return
    for record in result:
        if not record.name.startswith("__"):
            print(record.name, record.version, record.build)


def read(file: str, channel: Any, **more: Any) -> Iterator[Any]:
    """The records of an index."""
    for name, record in json.loads(Path(file).read_text())["packages.conda"].items():
        yield PackageRecord.from_objects(
            record, fn=name, channel=channel, url=f"{channel.canonical_name}/{name}", **more
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
