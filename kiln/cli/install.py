"""``kiln install``: packages into a prefix, without conda."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.cli.image import channel_name
from kiln.matchspec import strict

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from kiln.pipeline.installing import Change, Installation, Request
    from kiln.pipeline.refusal import Machine

SIGNS = {"new": "+", "changed": "~", "kept": " ", "removed": "-"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln install``."""
    parser.add_argument("specs", nargs="+", metavar="SPEC", help="tensorflow, 'tensorflow-gpu 2.21.*', python=3.12")
    parser.add_argument(
        "--prefix",
        required=True,
        metavar="DIR",
        type=Path,
        help="a new folder, or a prefix to change",
    )
    parser.add_argument(
        "--from",
        dest="channels",
        metavar="CHANNEL",
        action="append",
        help="a channel's folder, URL or name; may be given again, first ones first (default: conda-forge)",
    )
    parser.add_argument(
        "--flexible",
        action="store_true",
        help="take packages from later channels where earlier ones won't do",
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be installed, and write nothing")
    parser.add_argument("--cache", metavar="DIR", type=Path, help="where packages are fetched to (default: rattler's)")
    parser.add_argument("--verbose", action="store_true", help="tell all that the solver says when it fails")
    parser.add_argument("--json", action="store_true", help="print what was installed as JSON")


def run(options: argparse.Namespace, root: Path) -> int:  # noqa: ARG001 - installing needs no feedstock
    """Choose the packages, install them unless this is a dry run, and print them."""
    from kiln import command
    from kiln.console.steps import Steps
    from kiln.pipeline import installing

    steps = Steps(sys.stderr, animated=sys.stderr.isatty())
    with command.termination_as_interrupt():
        with steps.step("solve"):
            planned = installing.plan(request(options))
        if not options.json:
            print("\n".join(table(planned)))
        if not options.dry_run and not planned.nothing:
            with steps.step(f"install {len(planned.records)} packages into {planned.request.prefix}"):
                installing.execute(planned, cache=(options.cache or default_cache(os.environ)).absolute())
    if options.json:
        print(json.dumps(as_data(planned, dry=options.dry_run), indent=2))
    return 0


def request(options: argparse.Namespace) -> Request:
    """Return what the command line and the environment ask for."""
    from kiln.pipeline import installing

    return installing.Request(
        prefix=options.prefix.absolute().resolve(),
        specs=tuple(map(strict, options.specs)),
        channels=tuple(map(channel_name, options.channels or ["conda-forge"])),
        machine=here(os.environ),
        flexible=options.flexible,
        verbose=options.verbose,
    )


def default_cache(environment: Mapping[str, str]) -> Path:
    """Return the folder that rattler, and so pixi, keeps unpacked packages in; rattler 0.28 does not say it itself."""
    if own := environment.get("RATTLER_CACHE_DIR"):
        return Path(own) / "pkgs"
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rattler" / "cache" / "pkgs"


def here(environment: Mapping[str, str]) -> Machine:
    """Return this machine, or the one that conda's variables say it is to be taken for."""
    from kiln.channel import OVERRIDES, machine_virtual_packages
    from kiln.compat import probe
    from kiln.pipeline.refusal import Machine

    return Machine(
        virtual_packages=machine_virtual_packages(environment),
        overridden=frozenset({"__cuda"} if OVERRIDES["cuda"] in environment else ()),
        driver=lambda: probe.driver(environment),
    )


def table(planned: Installation) -> Iterator[str]:
    """Each package with what happens to it, and the sum."""
    from kiln.files import size_text

    rows = [cells(change) for change in planned.changes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
    if planned.nothing:
        yield f"{planned.request.prefix} has all of it"
        return
    fetched = [change for change in planned.changes if change.action.value in {"new", "changed"}]
    yield f"{len(fetched)} packages, {size_text(sum(change.size for change in fetched))}, {planned.request.prefix}"


def cells(change: Change) -> tuple[str, ...]:
    """One row of the table."""
    was = f"was {change.was}" if change.was else ""
    place = change.channel.rstrip("/").rpartition("/")[2]
    return (SIGNS[change.action.value], change.name, change.version, change.build, place, was)


def as_data(planned: Installation, *, dry: bool) -> dict[str, object]:
    """Return the installation for programs."""
    return {
        "prefix": str(planned.request.prefix),
        "installed": not dry,
        "virtual_packages": {name: list(told) for name, told in planned.request.machine.virtual_packages.items()},
        "packages": [change.as_data() for change in planned.changes],
    }
