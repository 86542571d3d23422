"""``kiln verify``: whether a package is what its channel's records say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from kiln.provenance import Link


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln verify``."""
    common(parser)
    parser.add_argument("--json", action="store_true", help="the record as JSON on standard output")


def common(parser: argparse.ArgumentParser) -> None:
    """Add what every command about a published package takes."""
    parser.add_argument("package", metavar="PACKAGE", type=Path, help="a .conda file")
    parser.add_argument(
        "--channel",
        metavar="CHANNEL",
        help="the folder or URL of its channel, or a bundle (default: the channel that the file lies in)",
    )
    parser.add_argument(
        "--allowed-signers",
        metavar="FILE",
        type=Path,
        help="require a signature by somebody in this file, see ssh-keygen(1)",
    )


def run(options: argparse.Namespace, root: Path) -> int:  # noqa: ARG001 - the record tells all that is needed
    """Verify and print what holds."""
    link, held = record(options)
    if options.json:
        print(json.dumps(link.record, indent=2))
        return 0
    for line in held:
        print(f"holds: {line}")
    return 0


def record(options: argparse.Namespace) -> tuple[Link, tuple[str, ...]]:
    """Return the record of a package, verified, with what was seen to hold."""
    from kiln import provenance
    from kiln.errors import UsageError
    from kiln.publish.reading import reader

    if not options.package.is_file():
        raise UsageError(f"there is no file {options.package}", hint="download the package first")
    read = reader(options.channel or str(options.package.absolute().parents[1]))
    signers = None
    if options.allowed_signers:
        signers = provenance.Signers(file=options.allowed_signers, env=os.environ)
    return provenance.verify(
        options.package,
        read("provenance/chain.jsonl") or b"",
        bill_of=lambda sha256: read(f"provenance/sbom/{sha256}.spdx.json"),
        offered=offered(read),
        signers=signers,
    )


def offered(read: Callable[[str], bytes | None]) -> dict[str, str]:
    """Return the hashes in a channel's index; nothing of what has none, as a bundle.

    Raises:
        BrokenIndex: when it is not what it should be.
    """
    from kiln.repodata import adopted

    subdirs = [adopted(name, read(f"{name}/repodata.json") or b"{}") for name in ("linux-64", "noarch")]
    return {
        f"{subdir.name}/{file}": str(record.get("sha256", ""))
        for subdir in subdirs
        for file, record in subdir.records.items()
    }
