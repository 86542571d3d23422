"""The arguments of ``kiln fleet``, and how they are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse

PROVIDERS = ("aws", "openstack", "static", "local")
USUAL = "compute-16"
UNITS = {"": 3600.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln fleet``."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    plan = commands.add_parser("plan", help="which cell on which machine, how long, and for how much; asks nobody")
    run = commands.add_parser("run", help="bring up machines, build on all of them, bring all home, give all back")
    for each in (plan, run):
        _cell_arguments(each)
        _machine_arguments(each)
    _run_arguments(run)
    status = commands.add_parser("status", help="the runs in the ledger, their machines and jobs")
    status.add_argument("run", nargs="?", metavar="RUN", help="one run alone")
    status.add_argument("--ask", metavar="PROVIDER", choices=PROVIDERS, help="ask a provider what it has instead")
    status.add_argument("--json", action="store_true", help="as JSON on standard output")
    down = commands.add_parser("down", help="give back all that a run has, as often as you like")
    down.add_argument("runs", nargs="*", metavar="RUN", help="runs (default: all that were not ended)")
    down.add_argument("--provider", choices=PROVIDERS, help="of a run that is not in the ledger here")
    sweep = commands.add_parser("sweep", help="give back what any run has left, found by tag")
    sweep.add_argument("--provider", choices=PROVIDERS, required=True, help="whose machines")
    sweep.add_argument("--all", action="store_true", help="also machines whose time is not over: of runs under way")
    for each in (status, down, sweep, plan, run):
        each.add_argument("--vars", metavar="FILE", type=Path, action="append", default=[], help=VARS)


VARS = "a file of variables for the playbooks, as ansible-playbook -e @FILE; it may be encrypted by Ansible Vault"


def _cell_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="cells by the names of their files in .ci_support")
    parser.add_argument("--filter", metavar="GLOB", help="the cells whose names match")
    parser.add_argument("--all", action="store_true", help="every cell, or every one that --filter lets through")
    parser.add_argument("--failed", action="store_true", help="the cells that failed or were stopped in the last run")
    parser.add_argument("--rebuild", action="store_true", help="build cells again that came home before")
    parser.add_argument(
        "--container", choices=("docker", "podman", "none"), help="where the machines build, as of kiln build"
    )
    parser.add_argument("--json", action="store_true", help="the plan, or the run's report, as JSON on standard output")
    parser.set_defaults(rehearse=False)


def _machine_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--provider", choices=PROVIDERS, required=True, help="where the machines come from")
    parser.add_argument(
        "--type",
        action="append",
        dest="types",
        metavar="TYPE",
        help=f"type of machine, such as compute-48; several are compared (default: {USUAL} where there is one)",
    )
    parser.add_argument(
        "--cache", metavar="TYPE", help="one machine more, of this type, that holds a cache of Bazel's for all others"
    )
    parser.add_argument("--machines", metavar="N", type=int, default=4, help="machines at most (default: %(default)s)")
    parser.add_argument("--spot", action="store_true", help="machines that the provider may take back, for less")
    parser.add_argument(
        "--aim", choices=("fastest", "cheapest"), default="fastest", help="which arrangement (default: %(default)s)"
    )
    parser.add_argument("--budget", metavar="MONEY", type=float, help="the most it may cost, machines given back")
    parser.add_argument("--time-limit", metavar="TIME", help="the longest it may take, such as 10h or 90min")


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--attempts", metavar="N", type=int, default=3, help="machines for each cell (%(default)s)")
    parser.add_argument(
        "--replacements", metavar="N", type=int, default=3, help="new machines for those that die (%(default)s)"
    )
    parser.add_argument("--lease", metavar="TIME", default="1h", help="how long machines live unheard of (%(default)s)")
    parser.add_argument(
        "--patience", metavar="TIME", default="3min", help="when a silent machine counts as dead (%(default)s)"
    )
    parser.add_argument("--poll", metavar="TIME", default="5s", help="between two looks at a build (%(default)s)")
    parser.add_argument(
        "--image",
        metavar="FILE=TAG",
        action="append",
        default=[],
        help="the root file system of an image that cells build in, for machines that cannot fetch it",
    )


def seconds(text: str) -> float:
    """Return the seconds of a time such as ``10h``, ``90min``, ``45 s``; a bare number is hours.

    Raises:
        UsageError: when it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(h|min|m|s|)", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no time", hint="such as 10h, 90min or 45s")
    return float(match[1]) * UNITS[match[2]]
