"""The arguments of ``kiln build``, which ``build-locally.py`` accepts too.

An argument that sets a field of `kiln.job.job_descriptions.BuildOptions` is stored under the field's name, converted
to its type.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kiln.cli import common_arguments, option_value_parsers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln build``."""
    common_arguments.add_config_selection_arguments(parser)
    parser.add_argument(
        "-j", "--jobs", metavar="N", type=int, default=1, help="build N configs in parallel (default: 1)"
    )
    parser.add_argument("--rebuild", action="store_true", help="rebuild configs that are already finished")
    _add_step_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the configs to build, in order, and exit")
    parser.add_argument("--keep-failed", action="store_true", help="keep the work folder of a failed step")
    _add_executor_arguments(parser)
    _add_compile_arguments(parser)
    _add_budget_and_handover_arguments(parser)
    _add_rehearsal_arguments(parser)
    _add_output_arguments(parser)


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        "-v",
        "--verbose",
        dest="verbosity",
        action="store_const",
        const="verbose",
        default="normal",
        help="print the output of all steps, too, instead of the live view",
    )
    amount.add_argument(
        "-q",
        "--quiet",
        dest="verbosity",
        action="store_const",
        const="quiet",
        help="print failures and the last line alone, instead of the live view",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--junit", metavar="FILE", type=Path, help="write the report to this file as JUnit's XML, for a CI"
    )


def _add_step_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from-step",
        metavar="STEP",
        help="run this step and all later ones again, and reuse the results of earlier steps; the log has the names of "
        "the steps: 'compile', 'build NAME', 'test NAME'",
    )
    parser.add_argument(
        "--debug",
        dest="shell",
        action="store_true",
        help="open a shell where a build script of the config runs, with its environments, sources and compiled files",
    )
    parser.add_argument(
        "--output-id",
        metavar="GLOB",
        help="with --debug: select the output whose script to debug (default: the recipe's top-level script, or the "
        "only output's)",
    )


def _add_executor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        choices=("rattler-build", "conda-build", "mambabuild"),
        default="rattler-build",
        help="build with this tool (default: %(default)s); the image or this machine must have it",
    )
    parser.add_argument(
        "--container",
        choices=("docker", "podman", "none"),
        help="build in containers of this engine; 'none' builds on this machine, where scripts have all of your "
        "permissions (default: the first engine that works, else none)",
    )
    parser.add_argument(
        "--network",
        choices=("granted", "always"),
        default="granted",
        help="give network access in containers to the scripts that the recipe grants it, or to all scripts, as "
        "conda-forge's builds do (default: %(default)s)",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        type=option_value_parsers.parse_size,
        help="limit the memory of each config: 16GB (default: a share)",
    )
    parser.add_argument("--cores", metavar="N", type=int, help="limit the cores of each config (default: a share)")


def add_remote_executor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a remote executor, for builds here or on the workers of a fleet."""
    parser.add_argument(
        "--remote-executor",
        metavar="URL",
        type=option_value_parsers.parse_remote_executor_url,
        help="run the actions of compiles by Bazel on the workers of this server: grpc(s)://HOST:PORT/INSTANCE; the "
        "variable BAZEL_REMOTE_EXECUTOR does the same",
    )
    parser.add_argument(
        "--remote-credentials",
        metavar="FOLDER",
        type=option_value_parsers.parse_credentials_folder,
        help="use these files for the remote executor: ca.pem, client.pem and client.key, and headers, NAME: VALUE on "
        "each line; the variable BAZEL_REMOTE_CREDENTIALS does the same",
    )
    parser.add_argument(
        "--remote-jobs",
        metavar="N",
        type=option_value_parsers.parse_positive_number,
        help="run up to N actions at a time on the remote executor (default: the recipe's)",
    )
    parser.add_argument(
        "--remote-fallback",
        action="store_true",
        help="run actions here if the remote executor does not answer (default: fail; actions that must not run "
        "remotely always run here)",
    )


def _add_compile_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--remote-cache",
        metavar="URL",
        type=option_value_parsers.parse_remote_cache_url,
        help="share Bazel's cache between machines: http(s):// or grpc(s)://; the variable BAZEL_REMOTE_CACHE does the "
        "same, hidden from process lists",
    )
    add_remote_executor_arguments(parser)
    parser.add_argument(
        "--compile-cache",
        metavar="FOLDER",
        type=option_value_parsers.parse_folder_path,
        help="use Bazel's disk caches in this folder, which feedstocks and machines may share (default: "
        "build_artifacts/compile-cache)",
    )
    parser.add_argument(
        "--distdir",
        metavar="FOLDER",
        type=option_value_parsers.parse_existing_folder,
        help="use downloaded files from this folder: archives of sources, and files that Bazel would download",
    )
    parser.add_argument(
        "--mirror",
        metavar="URL",
        type=option_value_parsers.parse_mirror_url,
        help="try this mirror of sources first, as URL/HOST/PATH",
    )
    parser.add_argument(
        "--stall",
        metavar="MINUTES",
        type=option_value_parsers.parse_minutes_as_seconds,
        default="20",
        help="report a compile without any activity for this long (default: %(default)s)",
    )
    parser.add_argument(
        "--cache-size",
        dest="cache_bound",
        metavar="SIZE",
        type=option_value_parsers.parse_size,
        default="200GB",
        help="limit the disk space of the compile caches (default: %(default)s)",
    )


def _add_budget_and_handover_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--budget",
        metavar="TIME",
        type=option_value_parsers.parse_budget,
        help="stop an unfinished build in time before this time has passed, such as 5h30m, or after a number of "
        "Bazel's actions, such as '500 actions'; exit with code 34",
    )
    parser.add_argument(
        "--handover",
        metavar="DIR",
        type=option_value_parsers.parse_folder_path,
        help="continue CONFIG with what a job before has left in this folder, and leave there what a next job needs",
    )
    parser.add_argument(
        "--notice",
        metavar="FILE",
        type=lambda text: Path(text).absolute(),
        help="stop an unfinished build as --budget does, at once, when this file appears with the time at which the "
        'machine is taken back, such as {"at": 1790000120} in seconds since the epoch',
    )
    parser.add_argument(
        "--handover-size",
        metavar="SIZE",
        type=option_value_parsers.parse_size,
        default="20GB",
        help="limit the unpacked size of what is handed on (default: %(default)s)",
    )


def _add_rehearsal_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rehearse",
        dest="rehearsal",
        action="store_true",
        help="rehearse: build and test without a conda channel, from wheels of pip's index, and from the Python, the "
        "compilers and the programs of this machine; for TensorFlow, use upstream's wheel instead of compiling. Runs "
        "on this machine unless --container is set. Without CONFIG: the only one, or the running Python's CPU config",
    )
    parser.add_argument(
        "--python",
        metavar="EXECUTABLE",
        type=Path,
        help="use this interpreter as the rehearsal's Python, and to select the config if no CONFIG is given (default: "
        "the running one, or another one on this machine)",
    )
    parser.add_argument("--calling-python", type=Path, default=Path(sys.executable), help=argparse.SUPPRESS)
    parser.add_argument(
        "--python-channel",
        metavar="CHANNEL",
        type=option_value_parsers.parse_channel,
        default="conda-forge",
        help="download a Python that this machine lacks for a rehearsal from this conda channel; 'none' downloads "
        "none (default: %(default)s)",
    )
