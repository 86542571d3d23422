"""The arguments of ``kiln fleet``."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import UsageError
from kiln.base.text import duration_seconds
from kiln.cli import arguments
from kiln.fleet.model import LEASE
from kiln.fleet.options import DEFAULT_TYPE, LOSSES, SPOT_LOSSES

if TYPE_CHECKING:
    import argparse

PROVIDERS = ("aws", "openstack", "static", "local", "slurm")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@+-]*")


def parse_words(text: str) -> list[str]:
    """Return the words of a text, which commas separate."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_money(text: str) -> float:
    """Return an amount of money."""
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not (math.isfinite(amount) and amount >= 0):
        raise UsageError(f"invalid amount of money {text!r}", hint="--cost-limit 40, in the provider's currency")
    return amount


def parse_image(text: str) -> dict[str, str]:
    """Return an image that is copied to the workers, FILE=TAG."""
    file, _, tag = text.rpartition("=")
    if not file or not tag or not Path(file).is_file():
        raise UsageError(
            f"invalid image {text!r}", hint="--image FILE=TAG, with the file that kiln image base has written"
        )
    return {"archive": str(Path(file).absolute()), "tag": tag}


def parse_slurm_name(text: str) -> str:
    """Return the name of a partition, an account or a quality of service."""
    if not NAME.fullmatch(text):
        raise UsageError(f"invalid name {text!r} of a partition, account or quality of service of Slurm")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln fleet``."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    plan = commands.add_parser("plan", help="show schedule and cost, within the account's quotas")
    plan.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        help="write a page with the arrangements by time and cost, as a picture, too",
    )
    run = commands.add_parser("run", help="provision workers, build, collect the packages, tear down")
    for command in (plan, run):
        _add_config_arguments(command)
        _add_worker_arguments(command)
        _add_slurm_arguments(command)
        _add_detach_arguments(command)
    _add_run_arguments(run)
    arguments.add_remote_executor_arguments(run)
    attach, collect = _add_detached_commands(commands)
    test = commands.add_parser("test", help="test built packages on a worker, with --gpu on one that has a GPU")
    _add_test_arguments(test)
    resume = commands.add_parser("resume", help="continue a run by the command that began it")
    resume.add_argument("run", metavar="RUN", help="run that was interrupted, or has ended with configs unbuilt")
    status = commands.add_parser("status", help="show the ledger's fleet runs with their workers and jobs")
    status.add_argument("run", nargs="?", metavar="RUN", help="show this run only")
    status.add_argument("--key", metavar="FILE", type=Path, help=KEY_HELP)
    status.add_argument("--ask", metavar="PROVIDER", choices=PROVIDERS, help="list the workers of a provider instead")
    status.add_argument("--json", action="store_true", help="write JSON to standard output")
    down = commands.add_parser("down", help="terminate all workers of a run; can be repeated")
    down.add_argument("runs", nargs="*", metavar="RUN", help="run to tear down (default: all that have not ended)")
    down.add_argument("--key", metavar="FILE", type=Path, help=KEY_HELP)
    down.add_argument("--provider", choices=PROVIDERS, help="provider of a run that is not in the ledger")
    sweep = commands.add_parser("sweep", help="terminate your expired workers of all runs, found by their tags")
    sweep.add_argument("--provider", choices=PROVIDERS, required=True, help="provider to sweep")
    sweep.add_argument("--all", action="store_true", help=SWEEP_ALL_HELP)
    sweep.add_argument("--user", metavar="NAME", help=SWEEP_USER_HELP)
    sweep.add_argument("--yes", action="store_true", help="with --all: do not ask before workers are terminated")
    sweep.add_argument("--print-timer", action="store_true", help=TIMER_HELP)
    sweep.add_argument(
        "--every", metavar="TIME", type=duration_seconds, default="15min", help="interval of the timer (default: 15min)"
    )
    prices = commands.add_parser("prices", help="show the prices of machine types")
    prices.add_argument("--provider", choices=PROVIDERS, help="show the prices of this provider only")
    prices.add_argument("--json", action="store_true", help="write JSON to standard output")
    for command in (plan, run, test):
        command.add_argument(
            "--zone", dest="zones", metavar="ZONE,...", type=parse_words, action="extend", default=[], help=ZONE_HELP
        )
        command.add_argument("--cost-limit", metavar="MONEY", type=parse_money, help=COST_HELP)
        command.set_defaults(rehearsal=False, parser=command)
    for command in (run, test):
        command.add_argument("--lease", metavar="TIME", type=duration_seconds, default=LEASE, help=LEASE_HELP)
    for command in (prices, plan, run, test):
        command.add_argument("--prices", metavar="FILE", type=Path, help=PRICES_HELP)
    for command in (status, down, sweep, plan, run, attach, collect, test):
        command.add_argument("--vars", metavar="FILE", type=Path, action="append", default=[], help=VARS_HELP)


def _add_detached_commands(commands: Any) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Add the commands for detached runs; return those that ask the provider.

    ``commands`` is the result of argparse's ``add_subparsers``, whose type has no public name.
    """
    attach = commands.add_parser("attach", help="show a detached run until it is over, then collect its packages")
    logs = commands.add_parser("logs", help="print the log of a config of a detached run, or the run's last lines")
    collect = commands.add_parser("collect", help="collect the packages and logs of a detached run that is over")
    for command in (attach, logs, collect):
        command.add_argument("run", nargs="?", metavar="RUN", help="detached run (default: the feedstock's only one)")
        command.add_argument("--key", metavar="FILE", type=Path, help=KEY_HELP)
    attach.add_argument("--no-collect", action="store_true", help="leave the packages on the controller")
    for command in (attach, collect):
        command.add_argument("--to", metavar="FOLDER", type=Path, help=TO_HELP)
    logs.add_argument("config", nargs="?", metavar="CONFIG", help="name of a config's file in .ci_support")
    return attach, collect


OFFLINE_HELP = "do not ask the provider for the account's quotas, which is only done if credentials are at hand"
SWEEP_ALL_HELP = "terminate all workers of all users, also those of runs in progress, after asking"
SWEEP_USER_HELP = "terminate the workers of this user, by the tag kiln-user (default: yours; with --all everybody's)"
VARS_HELP = "read variables for the playbooks, as ansible-playbook -e @FILE; Ansible Vault may encrypt the file"

KEY_HELP = "key of a detached run, from any computer: the file that --detach has written, or its folder"
TO_HELP = "collect into this folder (default: the run's feedstock; elsewhere a folder fleet-RUN)"
DETACH_HELP = "run on a controller of its own, a small worker of the provider, and return: see kiln fleet attach"
CONTROLLER_HELP = "with --detach: use this existing machine, [USER@]HOST as ssh takes it, as the controller"
KEEP_HELP = "with --detach: keep the packages on the controller this long after the run (default: 72h)"

ATTEMPTS_HELP = (
    f"try each config on N workers (default: {LOSSES}, with --spot {SPOT_LOSSES}, more while others are lost as often)"
)
REPLACEMENTS_HELP = (
    f"replace N lost workers at most (default: one for each planned hour of a worker, {SPOT_LOSSES} at least,"
    f" with --spot {SPOT_LOSSES} for each worker)"
)

PRICES_HELP = "table of prices to use in addition to kiln's (default: prices.csv in ~/.config/kiln, if it exists)"

TIMER_HELP = "print a shell script for '| sh' that makes systemd sweep from this computer; contact nobody"
GPU_TESTS_HELP = "test the CUDA configs, once all are built, on a worker with a GPU; without that they are not done"
GPU_TYPE_HELP = (
    "machine type of the GPU tests, and those to take where the provider refuses it (default: the cheapest with a GPU)"
)
KEEP_GOING_HELP = "build the other configs of a group, too, after its first build failed in the compile that they share"
SLURM_FOLDER_HELP = "folder on a filesystem that this computer and all nodes share, under the same path"
ZONE_HELP = "request workers in these zones, the next one where one refuses (default: the provider's first)"
FALLBACK_HELP = (
    "machine types to take, in this order, where the provider refuses others; with --spot, the word on-demand"
)
ADDITIONAL_HELP = (
    "start workers in addition to those that another computer has started for the same recipe and build options"
)
CAPACITY_HELP = "end a run without workers whose requests are all refused for this long (default: 1h)"
LEASE_HELP = f"shut workers down after this long without a lease renewal (default: {LEASE / 60:.0f}min)"
TIMEOUT_HELP = "probe a worker that has not answered for this long (default: 3min)"
COST_HELP = "spend this much at most, in the provider's currency, tear-down included"


def _add_config_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_config_selection_arguments(parser)
    parser.add_argument("--rebuild", action="store_true", help="build configs that are up to date, too")
    parser.add_argument(
        "--container", choices=("docker", "podman", "none"), help="container engine on the workers, as in kiln build"
    )
    parser.add_argument("--json", action="store_true", help="write the plan or the report as JSON to standard output")


def _add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--provider", choices=PROVIDERS, required=True, help="provider of the workers")
    parser.add_argument(
        "--type",
        action="append",
        dest="types",
        metavar="TYPE",
        help=f"machine type, such as compute-48; repeat to compare several (default: {DEFAULT_TYPE} if offered)",
    )
    parser.add_argument("--cache", metavar="TYPE", help="provision one more worker, of this type, as a Bazel cache")
    parser.add_argument(
        "--workers", metavar="N", type=int, help="use this many workers at most (default: 4; slurm: all configs)"
    )
    parser.add_argument(
        "--fallback",
        dest="fallbacks",
        metavar="TYPE,...",
        type=parse_words,
        action="extend",
        default=[],
        help=FALLBACK_HELP,
    )
    parser.add_argument("--spot", action="store_true", help="use spot workers, which are cheaper and can be reclaimed")
    parser.add_argument(
        "--optimize",
        choices=("both", "time", "cost"),
        default="both",
        help="choose the fastest arrangement, the cheapest, or the knee between them (default: %(default)s)",
    )
    parser.add_argument("--offline", action="store_true", help=OFFLINE_HELP)
    parser.add_argument(
        "--time-limit", metavar="TIME", type=duration_seconds, help="take this long at most, such as 10h or 90min"
    )
    parser.add_argument("--gpu-tests", action="store_true", help=GPU_TESTS_HELP)
    parser.add_argument(
        "--gpu-type", dest="gpu_types", metavar="TYPE,...", type=parse_words, default=[], help=GPU_TYPE_HELP
    )


def _add_test_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_config_selection_arguments(parser)
    parser.add_argument("--provider", choices=PROVIDERS[:-1], required=True, help="provider of the worker")
    parser.add_argument("--gpu", action="store_true", help="test the configs for CUDA, on a worker with a GPU")
    parser.add_argument(
        "--type",
        action="append",
        dest="types",
        metavar="TYPE",
        help="machine type of the worker, such as gpu-l4; repeat to name others where the provider refuses it (default:"
        " with --gpu the cheapest with a GPU)",
    )
    parser.add_argument("--spot", action="store_true", help="use a spot worker, which is cheaper and can be reclaimed")
    parser.add_argument("--json", action="store_true", help="write the results as JSON to standard output")


def _add_slurm_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("jobs of Slurm, with --provider slurm")
    group.add_argument("--slurm-folder", metavar="FOLDER", type=arguments.parse_folder_path, help=SLURM_FOLDER_HELP)
    group.add_argument("--slurm-cores", metavar="N", type=int, help="cores of each job (default: 16)")
    group.add_argument(
        "--slurm-memory",
        metavar="SIZE",
        type=arguments.parse_size,
        help="memory of each job (default: 32GB)",
    )
    group.add_argument(
        "--slurm-time", metavar="TIME", type=duration_seconds, help="time limit of each job (default: the partition's)"
    )
    for name, what in (
        ("partition", "partition of the jobs"),
        ("account", "account that is charged"),
        ("qos", "quality of service of the jobs"),
    ):
        group.add_argument(f"--slurm-{name}", metavar="NAME", type=parse_slurm_name, help=f"{what} (default: Slurm's)")
    group.add_argument(
        "--slurm-option",
        metavar="OPTION",
        action="append",
        default=[],
        help="further option of sbatch, as --slurm-option=--constraint=avx512; can be repeated",
    )


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--attempts", metavar="N", type=int, help=ATTEMPTS_HELP)
    parser.add_argument("--replacements", metavar="N", type=int, help=REPLACEMENTS_HELP)
    parser.add_argument("--capacity-timeout", metavar="TIME", type=duration_seconds, help=CAPACITY_HELP)
    parser.add_argument("--additional", action="store_true", help=ADDITIONAL_HELP)
    parser.add_argument("--keep-going", action="store_true", help=KEEP_GOING_HELP)
    parser.add_argument(
        "--unreachable-timeout", metavar="TIME", type=duration_seconds, default=180.0, help=TIMEOUT_HELP
    )
    parser.add_argument(
        "--poll", metavar="TIME", type=duration_seconds, default=5.0, help="poll builds at this interval (default: 5s)"
    )
    parser.add_argument(
        "--image",
        dest="images",
        metavar="FILE=TAG",
        type=parse_image,
        action="append",
        default=[],
        help="copy this container image to the workers, which then need not pull it",
    )


def _add_detach_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("runs that outlive this computer")
    group.add_argument("--detach", action="store_true", help=DETACH_HELP)
    group.add_argument("--controller", metavar="HOST", help=CONTROLLER_HELP)
    group.add_argument("--controller-type", metavar="TYPE", help="with --detach: machine type of the controller")
    group.add_argument("--keep", metavar="TIME", type=duration_seconds, help=KEEP_HELP)
