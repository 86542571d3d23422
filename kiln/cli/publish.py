"""``kiln publish``: put packages into a channel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln publish``."""
    parser.add_argument("packages", nargs="+", metavar="PACKAGE", type=Path, help=".conda files")
    parser.add_argument("--to", required=True, metavar="FOLDER", type=Path, help="the channel's folder")


def run(options: argparse.Namespace, root: Path) -> int:  # noqa: ARG001 - packages carry all that is needed
    """Publish and print where the packages lie now."""
    from kiln import publish

    for place in publish.publish(options.packages, options.to):
        print(place)
    return 0
