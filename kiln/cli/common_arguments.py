"""Arguments that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.cli import values

if TYPE_CHECKING:
    import argparse


def channels(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Add the option for the channels to take packages from; ``default`` is its default in words."""
    parser.add_argument(
        "--from",
        dest="channels",
        metavar="CHANNEL",
        type=values.channel,
        action="append",
        default=[],
        help="take packages from this channel (a folder, URL or name); can be repeated, in order of priority (default: "
        f"{default})",
    )
