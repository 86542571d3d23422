"""The arguments of ``kiln build``, which ``build-locally.py`` takes too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln build``."""
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="cells by the names of their files in .ci_support")
    parser.add_argument("--filter", metavar="GLOB", help="the cells whose names match, such as '*cuda*python3.11*'")
    parser.add_argument("--all", action="store_true", help="every cell, or every one that --filter lets through")
    parser.add_argument("--failed", action="store_true", help="the cells that failed or were stopped in the last run")
    parser.add_argument("-j", "--jobs", metavar="N", type=int, default=1, help="cells at a time (default: 1)")
    parser.add_argument("--rebuild", action="store_true", help="build cells again that are finished")
    parser.add_argument(
        "--from-step",
        metavar="STEP",
        help="run this step of a cell and all after it again, and take what those before it left as it is; steps are "
        "called as in the log: 'compile', 'build NAME', 'test NAME'",
    )
    parser.add_argument(
        "--network",
        choices=("granted", "always"),
        default="granted",
        help="the network of a recipe's scripts in a container: those that the recipe grants it, or all of them, as in "
        "conda-forge's own builds (default: %(default)s)",
    )
    parser.add_argument(
        "--debug",
        action="store_true",
        help="open a shell where a script of the cell runs, with its environments, its sources and what was compiled",
    )
    parser.add_argument(
        "--output-id",
        metavar="GLOB",
        help="with --debug: the output whose script it is (default: the recipe's own, or the only output's)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be built, in which order, and stop")
    parser.add_argument("--keep-failed", action="store_true", help="keep the folder of a step that failed")
    parser.add_argument(
        "--engine",
        choices=("rattler-build", "conda-build", "mambabuild"),
        default="rattler-build",
        help="what builds (default: %(default)s); the others must be in the image, or on this machine",
    )
    parser.add_argument(
        "--container",
        choices=("docker", "podman", "none"),
        help="where to build; 'none' is this machine itself (default: the first engine that answers, else none)",
    )
    parser.add_argument(
        "--memory", metavar="SIZE", help="the most memory for each cell, such as 16GB (default: a share)"
    )
    parser.add_argument("--cores", metavar="N", type=int, help="the cores for each cell (default: a share)")
    _compile_arguments(parser)
    _rehearsal_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")


def _compile_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--remote-cache",
        metavar="URL",
        help="where several machines share what Bazel compiles: http(s):// or grpc(s)://; or the variable "
        "BAZEL_REMOTE_CACHE, which no list of processes shows",
    )
    parser.add_argument(
        "--distdir",
        metavar="FOLDER",
        type=Path,
        help="files fetched before: the sources' archives, and what Bazel would download",
    )
    parser.add_argument(
        "--mirror", metavar="URL", help="where the sources' archives are looked for first, as URL/HOST/PATH"
    )
    parser.add_argument(
        "--stall",
        metavar="MINUTES",
        type=float,
        default=20.0,
        help="say so when a compile has shown no sign of life for that long (default: %(default)g)",
    )
    parser.add_argument(
        "--cache-size",
        metavar="SIZE",
        default="200GB",
        help="the most that compiles may leave in their caches (default: %(default)s)",
    )


def _rehearsal_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="put the wheel that upstream published in the place of the compile; needs PyPI and minutes, no conda "
        "channel, and runs on this machine itself unless --container says otherwise. Without CONFIG: the CPU cell of "
        "the running Python",
    )
    parser.add_argument(
        "--python",
        metavar="EXECUTABLE",
        type=Path,
        default=Path(sys.executable),
        help="the interpreter that a rehearsal packages where it is the cell's Python, and whose cell is rehearsed "
        "without CONFIG (default: the running one)",
    )
