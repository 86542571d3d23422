"""``kiln verify``: verify a package against its provenance."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from kiln.provenance import Link


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln verify``."""
    common(parser)
    parser.add_argument("--json", action="store_true", help="print the provenance record as JSON")


def common(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of commands about a published package."""
    parser.add_argument("package", metavar="PACKAGE", type=Path, help="path of a .conda file")
    parser.add_argument(
        "--channel",
        metavar="CHANNEL",
        help="read the records from this folder, URL or bundle (default: the channel that contains the file)",
    )
    parser.add_argument(
        "--allowed-signers",
        metavar="FILE",
        type=Path,
        help="require a signature by a signer in this file, see ssh-keygen(1)",
    )


def run(options: argparse.Namespace, root: Path) -> int:  # noqa: ARG001 - a verification needs no feedstock
    """Verify the package and print the verified facts."""
    link, facts = record(options)
    if options.json:
        print(json.dumps(link.record, indent=2))
        return 0
    for fact in facts:
        print(f"verified: {fact}")
    return 0


def record(options: argparse.Namespace) -> tuple[Link, tuple[str, ...]]:
    """Return the verified record of a package, and the verified facts."""
    from kiln import provenance
    from kiln.conda_package.reader import read_object
    from kiln.errors import ProvenanceBroken, UsageError
    from kiln.names import is_channel_folder
    from kiln.publish.channel_reader import reader

    if not options.package.is_file():
        raise UsageError(f"file not found: {options.package}", hint="download the package first")
    channel = options.channel or str(options.package.absolute().parents[1])
    read = reader(channel)
    if (chain := read("provenance/chain.jsonl")) is None:
        raise ProvenanceBroken(
            f"{options.package.name} has no record: the channel {channel} has none of any package",
            why="a record is written when a package is published",
            hint="kiln publish --to CHANNEL publishes it; --channel CHANNEL reads the records of another channel",
        )
    signers = None
    if options.allowed_signers:
        signers = provenance.Signers(file=options.allowed_signers, env=os.environ)
    own = set(filter(is_channel_folder, (str(read_object(options.package, "index.json").get("subdir")),)))
    return provenance.verify(
        options.package,
        chain,
        bill_of=lambda sha256: read(f"provenance/sbom/{sha256}.spdx.json"),
        offered=index_hashes(read, own),
        signers=signers,
    )


def index_hashes(read: Callable[[str], bytes | None], more: Iterable[str] = ()) -> dict[str, str]:
    """Return the hashes in a channel's index, also of ``more`` subdirs; a bundle has no index, so none.

    Raises:
        BrokenIndex: if the index is invalid.
    """
    from kiln.publish.order import subdirs_of
    from kiln.repodata import adopted

    subdirs = [adopted(name, read(f"{name}/repodata.json") or b"{}") for name in subdirs_of(more)]
    return {
        f"{subdir.name}/{file}": str(record.get("sha256", ""))
        for subdir in subdirs
        for file, record in subdir.records.items()
    }
