"""Arguments that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.cli import values

if TYPE_CHECKING:
    import argparse


def add_channels(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Add the option for the channels to take packages from; ``default`` is its default in words."""
    parser.add_argument(
        "-c",
        "--from",
        dest="channels",
        metavar="CHANNEL",
        type=values.channel,
        action="append",
        default=[],
        help="take packages from this channel (a folder, URL or name); can be repeated, in order of priority (default: "
        f"{default})",
    )


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select configs."""
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="name of a config's file in .ci_support")
    parser.add_argument("--filter", metavar="GLOB", help="build the configs with matching names: '*cuda*python3.11*'")
    parser.add_argument("--all", action="store_true", help="build all configs (narrow with --filter)")
    parser.add_argument(
        "--failed", action="store_true", help="build the configs that failed or were interrupted in the last run"
    )
