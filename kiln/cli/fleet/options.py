"""The options of ``kiln fleet`` from its arguments and the environment, checked before anything is contacted."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import UsageError
from kiln.base.text import duration_seconds
from kiln.cli import arguments
from kiln.cli.fleet.arguments import parse_image, parse_words
from kiln.fleet import options as fleet_options
from kiln.fleet.options import CLOUDS, SLURM, FleetOptions
from kiln.fleet.plan.prices import COLUMNS, price_region
from kiln.fleet.slurm.site import SlurmSettings, check_sbatch_options
from kiln.state.results import ControllerCharge

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping


EXECUTOR, CREDENTIALS = "BAZEL_REMOTE_EXECUTOR", "BAZEL_REMOTE_CREDENTIALS"
LITERAL = re.compile(r"[A-Za-z0-9_.,:/=@%+~-]*")  # characters that systemd's file of variables takes as they are
CHARGE = "KILN_FLEET_CONTROLLER"  # the variable by which a controller knows its own price
RUN_ID = "KILN_FLEET_ID"  # the variable by which a controller knows the name of its run
SLURM_CORES, SLURM_MEMORY = 16, 32_000_000_000  # of a job: those of compute-16
SLURM_OPTIONS = ("folder", "cores", "memory", "time", "partition", "account", "qos", "option")
# Options of other providers: a cluster has its own accounting, and jobs share a compile in the shared folder.
NOT_OF_SLURM = ("types", "cache", "spot", "cost_limit", "images", "gpu_tests")
# Options that have an effect for some providers only. The simulated machines of "local" can be refused, too.
OPTIONS_OF = {
    "zones": CLOUDS,
    "fallbacks": CLOUDS,
    "additional": CLOUDS,
    "capacity_timeout": (*CLOUDS, "local"),
    "spot": ("aws",),
}
DETACHABLE = ("aws", "openstack", "static")  # whose workers another machine can reach
# Options that stay here when a run is detached, or whose values are sent in another way.
SELECTION = frozenset({"help", "configs", "filter", "all", "failed"})
HERE = frozenset(
    {
        *SELECTION,
        *("rebuild", "json", "html", "vars", "prices", "images"),
        *("detach", "controller", "controller_type", "keep"),
        *("remote_executor", "remote_credentials"),
    }
)


def parse_options(namespace: argparse.Namespace, environment: Mapping[str, str]) -> FleetOptions:
    """Return the options of a command; arguments that set a field have its name."""
    names = {item.name for item in dataclasses.fields(FleetOptions)}
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(namespace).items()
        if name in names and value is not None
    }
    given |= {
        "environment": environment,
        "variables": fleet_options.read_playbook_variables(given.get("vars", ())),
        "prices": _price_table(given.get("prices"), environment),
        "own_run": environment.get(RUN_ID, "") if re.fullmatch(r"[0-9a-f]{8}", environment.get(RUN_ID, "")) else "",
        "own_charge": controller_charge(environment),
    }
    if namespace.action in {"run", "test"}:
        given["words"] = (namespace.action, *_option_words(namespace, without=SELECTION))
    options = FleetOptions(**given)
    if namespace.action not in {"plan", "run", "test"}:
        return options
    _check_provider(namespace)
    if getattr(namespace, "gpu", False) or (namespace.action == "run" and options.gpu_tests):
        _check_gpu_image(options)
    _check_zones(options)
    if namespace.action == "test":
        return options
    _check_detaching(namespace)
    options = dataclasses.replace(
        options,
        slurm=slurm_settings(namespace) if options.provider == SLURM else None,
        controller_words=tuple(_option_words(namespace, without=HERE)) if options.detach else (),
    )
    return _with_remote_executor(options) if namespace.action == "run" else options


def _price_table(path: Path | None, environment: Mapping[str, str]) -> Path | None:
    """Return the user's table of prices: the one that is named, or that of the home if there is one."""
    if path is not None and not path.exists():
        raise UsageError(f"{path} not found", hint=f"a CSV table, whose first line is {','.join(COLUMNS)}")
    own = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "kiln" / "prices.csv"
    return path or (own if own.is_file() else None)


def controller_charge(environment: Mapping[str, str]) -> ControllerCharge | None:
    """Return the charge for the controller on which this process runs; None elsewhere."""
    words = environment.get(CHARGE, "").split()
    if len(words) != 5:
        return None
    hourly, billed, since = map(float, words[:3])
    return ControllerCharge(hourly=hourly, billed=billed, since=since, currency=words[3], name=words[4])


def _option_of_field(name: str) -> str:
    singular = {"types": "type", "zones": "zone", "fallbacks": "fallback", "images": "image", "gpu_types": "gpu-type"}
    return f"--{singular.get(name) or name.replace('_', '-')}"


def _check_provider(namespace: argparse.Namespace) -> None:
    """Refuse options that have no effect for a provider, and a type of tests that are not planned."""
    provider = namespace.provider
    if provider == SLURM:
        names = [name for name in NOT_OF_SLURM if getattr(namespace, name, None)]
        hint = "sizes are --slurm-cores and --slurm-memory; nothing is charged; jobs share compiles in --slurm-folder"
    else:
        names = [f"slurm_{name}" for name in SLURM_OPTIONS if getattr(namespace, f"slurm_{name}", None)]
        hint = "--provider slurm"
    for name, providers in OPTIONS_OF.items():
        if not names and getattr(namespace, name, None) and provider not in providers:
            names, hint = [name], f"runs on {' and '.join(providers)} take it"
    if names:
        raise UsageError(f"{_option_of_field(names[0])} is not an option of --provider {provider}", hint=hint)
    if getattr(namespace, "gpu_types", None) and not namespace.gpu_tests:
        raise UsageError("--gpu-type requires --gpu-tests")


def _check_gpu_image(options: FleetOptions) -> None:
    """Refuse to test on a GPU of an OpenStack without an image that has a driver, before anything is built for it."""
    if options.provider == "openstack" and not any(
        options.variable_text(f"kiln_openstack_{name}") for name in ("gpu_image", "image")
    ):
        raise UsageError(
            "tests on a GPU need an image with NVIDIA's driver, and none is named",
            why="the images of OpenStack clouds have none, as a rule",
            hint="write kiln_openstack_gpu_image with its name into a file for --vars",
        )


def _check_zones(options: FleetOptions) -> None:
    """Refuse a zone of AWS that another region has, and an OpenStack's region in the place of a zone.

    The names of OpenStack's zones say nothing of their region: the playbook compares them with those that exist.
    """
    for zone in options.zones:
        if options.provider == "aws":
            region, variable = price_region(options), "AWS_REGION"
            is_foreign, what = not zone.startswith(region), f"the zone {zone} is not in {region}, the region of the run"
        else:
            region, variable = options.environment.get("OS_REGION_NAME", ""), "OS_REGION_NAME"
            is_foreign, what = zone.lower() == region.lower(), f"{zone} is a region, and no zone"
        if is_foreign:
            raise UsageError(
                what,
                why="all workers of a run are in one region, with its prices, images and network rules",
                hint=f"{variable} sets the region of a run; for workers of a second one, start another run there, of"
                " other configs",
            )


def _check_detaching(namespace: argparse.Namespace) -> None:
    """Refuse options that contradict ``--detach``, or need it."""
    if not namespace.detach:
        for name in ("controller", "controller_type", "keep"):
            if getattr(namespace, name) is not None:
                raise UsageError(f"{_option_of_field(name)} requires --detach")
        return
    if namespace.provider not in DETACHABLE:
        raise UsageError(
            f"--detach requires --provider {', '.join(DETACHABLE[:-1])} or {DETACHABLE[-1]}",
            why="jobs of Slurm wait for nobody: nohup is enough on a login node"
            if namespace.provider == SLURM
            else "workers of this computer end with it",
        )
    if namespace.provider == "static" and namespace.controller is None:
        raise UsageError("--detach with --provider static requires --controller HOST", hint="a host that ssh reaches")
    if getattr(namespace, "images", None):
        raise UsageError("--image cannot be used with --detach", hint="have the workers pull the image")


def slurm_settings(namespace: argparse.Namespace) -> SlurmSettings:
    """Return the settings of a run's jobs; the folder may be missing, as the plan needs none."""
    if namespace.slurm_cores is not None and namespace.slurm_cores < 1:
        raise UsageError(f"--slurm-cores is {namespace.slurm_cores}", hint="a job needs at least one core")
    return SlurmSettings(
        folder=namespace.slurm_folder or Path(),
        cores=namespace.slurm_cores or SLURM_CORES,
        memory=namespace.slurm_memory or SLURM_MEMORY,
        partition=namespace.slurm_partition or "",
        account=namespace.slurm_account or "",
        qos=namespace.slurm_qos or "",
        time=None if namespace.slurm_time is None else math.ceil(namespace.slurm_time / 60),
        extra=check_sbatch_options(namespace.slurm_option),
    )


def _option_words(namespace: argparse.Namespace, *, without: Collection[str]) -> list[str]:
    """Return the options of this command line, with absolute paths, ``without`` some."""
    words: list[str] = []
    for action in namespace.parser._actions:  # noqa: SLF001 - argparse has no public list of a parser's options
        value = getattr(namespace, action.dest, action.default)
        if action.dest in without or value == action.default or not action.option_strings:
            continue
        option = action.option_strings[-1]
        if value is True:
            words.append(option)
        else:
            items = value if isinstance(value, list) else [value]
            if action.type is parse_words:  # of which a second option may replace the first
                items = [",".join(items)]
            words += [f"{option}={_option_text(action, item)}" for item in items]
    return words


def _option_text(action: argparse.Action, value: Any) -> str:
    """Return a parsed value of an option as it can be parsed again, in any folder."""
    if action.type is parse_image:
        return f"{value['archive']}={value['tag']}"
    if isinstance(value, Path):
        return str(value.absolute())
    return f"{value}s" if action.type is duration_seconds else str(value)


def _with_remote_executor(options: FleetOptions) -> FleetOptions:
    """Return the options with the executor of the environment, where none is named."""
    address = options.remote_executor or arguments.parse_remote_executor_url(options.environment.get(EXECUTOR, ""))
    credentials = options.remote_credentials
    if address is None:
        for name in ("remote_credentials", "remote_jobs", "remote_fallback"):
            if getattr(options, name):
                raise UsageError(f"{_option_of_field(name)} requires --remote-executor")
        return options
    if options.cache:
        raise UsageError(
            "--cache cannot be used with --remote-executor",
            why="Bazel does not combine a remote executor with a cache over HTTP",
            hint="leave --cache out: the executor has a cache of its own, which all builds share",
        )
    if not LITERAL.fullmatch(address):
        raise UsageError(
            "the URL of the remote executor has characters that cannot be passed to the workers",
            hint="put a password into --remote-credentials, as a header",
        )
    credentials = credentials or arguments.parse_credentials_setting(options.environment.get(CREDENTIALS, ""))
    return dataclasses.replace(options, remote_executor=address, remote_credentials=credentials)
