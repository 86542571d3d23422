"""``kiln build``: build cells, or rehearse them."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import AlreadyRunning, BuildFailed, KilnError, TestsFailed, UnknownConfig, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from kiln.model.feedstock import Feedstock
    from kiln.model.run import CellState, MatrixReport
    from kiln.pipeline import Machine, RunPlan, Wishes

# What a build sees of the user's environment; tokens and passwords stay outside.
PASSED_ON = (
    *("PATH", "HOME", "USER", "LANG", "LC_ALL", "TERM", "TMPDIR", "CPU_COUNT"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "no_proxy", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "XDG_DATA_HOME"),
)
# What the client of a container engine needs beside that.
CLIENT = re.compile(
    r"DOCKER_(?!IMAGE|EXECUTABLE)|CONTAINER|XDG_RUNTIME_DIR$|XDG_CONFIG_HOME$|DBUS_SESSION_BUS_ADDRESS$"
)
PROXIES = re.compile(r"(?:https?|no|all)_proxy$", re.IGNORECASE)
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln build``."""
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="cells by the names of their files in .ci_support")
    parser.add_argument("--filter", metavar="GLOB", help="the cells whose names match, such as '*cuda*python3.11*'")
    parser.add_argument("--all", action="store_true", help="every cell of the matrix, or every one that --filter lets")
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


def run(options: argparse.Namespace, root: Path) -> int:
    """Build or rehearse what was asked for and print the report."""
    from kiln import load
    from kiln.cli import debug

    if debug.wanted(options, os.environ) and not options.rehearse:
        return debug.run(options, load.find(root))
    if options.rehearse and options.debug:
        raise UsageError("a rehearsal has no compile to look into, and so no --debug", hint="leave one of them")
    if options.rehearse and options.from_step is not None:
        raise UsageError("a rehearsal goes on by itself where it was, and begins at no step", hint="leave --from-step")
    return build(load.find(root), options)


def build(feedstock: Feedstock, options: argparse.Namespace) -> int:
    """Build or rehearse cells, and return the exit code of what failed."""
    from kiln import pipeline

    if options.from_step is not None and options.rebuild:
        raise UsageError("--rebuild begins at the beginning, --from-step does not", hint="leave one of them")
    configs = wanted(feedstock, options)
    if not configs:
        print("nothing failed in the last run, nothing to build", file=sys.stderr)
        return 0
    planned = pipeline.plan(feedstock, wishes(feedstock, options, configs), machine_of(options), on_line=said_of_images)
    for note in planned.notes:
        print(f"note: {note}", file=sys.stderr)
    if options.dry_run:
        print(pipeline.as_text(planned))
        return 0
    report, errors = execute(feedstock, planned)
    if options.json:
        from kiln.report import as_json

        print(json.dumps(as_json(report), indent=2))
    elif options.rehearse:
        from kiln.report import rehearsal_text

        print(rehearsal_text(report), end="")
    return exit_code(report, errors)


def said_of_images(line: str) -> None:
    """Show what a container engine says while it fetches an image, which can be gigabytes."""
    print(f"image: {line}", file=sys.stderr, flush=True)


def execute(feedstock: Feedstock, planned: RunPlan) -> tuple[MatrixReport, Mapping[str, KilnError]]:
    """Run a plan, shown on standard error as whoever reads that can see it."""
    from kiln import command, expand, pipeline
    from kiln.cli.view import add_to_summary, view
    from kiln.report import labels

    configs = [cell.config for cell in planned.cells]
    variants = {config: expand.read(feedstock, config).variant for config in configs}
    shown = view(sys.stderr, os.environ, labels(configs, variants))
    with command.termination_as_interrupt(), shown:
        report, errors = pipeline.build(feedstock, planned, shown)
    add_to_summary(report, variants, os.environ)
    return report, errors


def exit_code(report: MatrixReport, errors: Mapping[str, KilnError]) -> int:
    """Return 0 when every cell is there, the code of what failed when all failed alike, else that of a failed build."""
    from kiln.model.run import CellState

    logs = {cell.config: cell.log for cell in report.cells}
    for config, error in errors.items():
        lines = advice(error, logs.get(config))
        if lines and not isinstance(error, AlreadyRunning):
            print("\n".join((config, *lines)), file=sys.stderr)
    good = {CellState.DONE, CellState.FOUND}
    bad = [cell for cell in report.cells if cell.state not in good]
    codes = {errors[cell.config].exit_code if cell.config in errors else BuildFailed.exit_code for cell in bad}
    failed = codes - {AlreadyRunning.exit_code} or codes
    return 0 if not failed else failed.pop() if len(failed) == 1 else BuildFailed.exit_code


def advice(error: KilnError, log: Path | None) -> list[str]:
    """Return what to try: what the error itself says, and what the doctor knows of the words at the end of the log."""
    from kiln.compat import failures

    own = [f"  try: {error.hint}"] if error.hint else []
    found = failures.at_the_end(log) if log is not None and isinstance(error, (BuildFailed, TestsFailed)) else ()
    return own + [line for each in found[-3:] for line in (f"  cause: {each.cause}", f"  try: {each.cure}")]


def wishes(feedstock: Feedstock, options: argparse.Namespace, configs: tuple[str, ...]) -> Wishes:
    """Return what was asked for, on the command line and in conda-forge's variables."""
    from kiln import pipeline
    from kiln.command import without_credentials

    environment = os.environ
    asked = pipeline.callers_variables(feedstock, configs)
    return pipeline.Wishes(
        configs=configs,
        command=without_credentials(shlex.join(("kiln", *sys.argv[1:]))),
        jobs=options.jobs,
        engine=options.engine,
        container=options.container,
        image=environment.get("DOCKER_IMAGE") or None,
        executable=environment.get("DOCKER_EXECUTABLE") or None,
        options=pipeline.run_arguments(environment.get("CONDA_FORGE_DOCKER_RUN_ARGS", "")),
        cores=options.cores,
        memory=None if options.memory is None else size(options.memory),
        rebuild=options.rebuild,
        keep_failed=options.keep_failed,
        from_step=options.from_step,
        network=options.network,
        fetch=not options.dry_run,
        rehearsal=options.rehearse,
        given=given(feedstock, environment),
        client={
            **client(environment),
            **(pip_settings(environment) if options.rehearse else {}),
            **{name: environment[name] for name in asked if name in environment},
        },
        remote_cache=remote_cache(options.remote_cache or environment.get("BAZEL_REMOTE_CACHE")),
        distdir=folder(options.distdir),
        mirror=mirror(options.mirror),
        stall=60 * options.stall,
        cache_bound=size(options.cache_size),
    )


def remote_cache(url: str | None) -> str | None:
    """Return the address of a cache as Bazel takes it.

    Raises:
        UsageError: when it is none; it is not repeated, for it may hold a password.
    """
    if url and not re.match(r"(?:https?|grpcs?)://[^/\s]+\S*$", url):
        raise UsageError(
            "--remote-cache is no address of a cache", hint="--remote-cache https://HOST/PATH, or grpcs://"
        )
    return url or None


def mirror(url: str | None) -> str | None:
    """Return the address of a mirror.

    Raises:
        UsageError: when it is none, or holds a password, for it would stand in logs and job files.
    """
    if url and not re.match(r"https?://[^/\s@]+(?:/\S*)?$", url):
        raise UsageError(
            "--mirror is no address of a mirror", hint="--mirror https://HOST/PATH, without a user and a password"
        )
    return url or None


def folder(path: Path | None) -> Path | None:
    """Return a folder that is there.

    Raises:
        UsageError: when it is not.
    """
    if path is not None and not path.is_dir():
        raise UsageError(f"there is no folder {path}", hint="--distdir FOLDER, with the files that Bazel would fetch")
    return path


def given(feedstock: Feedstock, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a build sees: conda-forge's, the way to the network, and the commit with its time."""
    from kiln import command, pipeline
    from kiln.errors import MissingTool

    names = {*pipeline.CONTRACT, "CPU_COUNT", "FEEDSTOCK_NAME"}
    found = {name: value for name, value in environment.items() if name in names or PROXIES.match(name)}
    if "sha" not in found:
        with contextlib.suppress(MissingTool):
            words = ("git", "log", "-1", "--format=%H %ct")
            asked = command.capture(words, env=passed_on(environment), cwd=feedstock.root)
            if asked.ok and asked.stdout:
                found["sha"], commit_time = asked.stdout.split()
                found.setdefault("SOURCE_DATE_EPOCH", commit_time)
    return found


def client(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a container engine's client, and kiln's own processes, need of an environment."""
    named = {name: value for name, value in environment.items() if CLIENT.match(name)}
    return {**passed_on(environment), **named}


def size(text: str) -> int:
    """Return the bytes that a size such as ``16GB``, ``500 MB`` or ``2GiB`` stands for.

    Raises:
        UsageError: when it is none.
    """
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no size", hint="--memory 16GB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** POWERS[match[2].lower()])


def wanted(feedstock: Feedstock, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the cells to build: those named, all, those that failed, or the one that a person picks.

    A rehearsal is of the CPU cell of the machine's Python when nothing says which.

    Raises:
        UnknownConfig: when a pattern matches no cell.
        UsageError: when nothing says which of several, and there is nobody to ask.
    """
    if options.configs and not options.failed:
        return tuple(dict.fromkeys(name.removesuffix(".yaml").removeprefix(".ci_support/") for name in options.configs))
    names = all_configs(feedstock, options)
    if options.failed:
        from kiln import pipeline

        return failed_of(names, pipeline.last_states(feedstock, rehearsal=options.rehearse))
    if options.rehearse and not (options.all or options.filter):
        from kiln import pipeline

        return (pipeline.cell_of_machine(feedstock, machine_of(options)),)
    if options.all or options.rehearse or len(names) == 1:
        return names
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{len(names)} cells could be built, and none is named", hint="name a CONFIG, or --all (kiln matrix)"
        )
    return (menu(names),)


def failed_of(names: tuple[str, ...], states: Mapping[str, CellState]) -> tuple[str, ...]:
    """Return the cells that failed or were stopped."""
    from kiln.model.run import CellState

    good = {CellState.DONE, CellState.FOUND, CellState.ELSEWHERE, CellState.WAITING}
    return tuple(name for name in names if states.get(name, CellState.DONE) not in good)


def all_configs(feedstock: Feedstock, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the names of all cells, or of those that match the filter.

    Raises:
        UnknownConfig: when there is none.
    """
    names = options.configs or sorted(file.stem for file in feedstock.configs.glob("*.yaml"))
    matching = tuple(fnmatch.filter(names, options.filter or "*"))
    if not matching:
        what = f"no cell matches {options.filter!r}" if options.filter else f"{feedstock.configs} holds no cell"
        raise UnknownConfig(what, hint="kiln matrix shows their names, kiln rerender writes them")
    return matching


def menu(names: tuple[str, ...]) -> str:
    """Ask a person for one of several cells, by its number.

    Raises:
        UsageError: when the answer is none of the numbers.
    """
    print("config not selected, please choose from the following:\n", file=sys.stderr)
    for number, name in enumerate(names, 1):
        print(f"{number}. {name}", file=sys.stderr)
    print("\n> ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip()
    if not answer.isdecimal() or not 1 <= int(answer) <= len(names):
        raise UsageError(f"{answer!r} is none of the numbers 1 to {len(names)}")
    return names[int(answer) - 1]


def machine_of(options: argparse.Namespace) -> Machine:
    """Return what a run takes from this machine."""
    from kiln import pipeline

    return pipeline.Machine(environment=passed_on(os.environ), python=options.python)


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a build may see of an environment."""
    return {name: environment[name] for name in PASSED_ON if name in environment}


def pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what pip alone may see: its settings, which may hold an index with a password, and its cache's place."""
    return {name: value for name, value in environment.items() if name.startswith("PIP_") or name == "XDG_CACHE_HOME"}
