"""Parse a command line, run its command, and print its errors with hints as the user can paste them."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from kiln import __version__
from kiln.base.errors import (
    AlreadyRunning,
    BuildFailed,
    Interrupted,
    KilnError,
    MissingTool,
    UsageError,
    did_you_mean,
    error_class_of_exit_code,
)
from kiln.base.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from kiln.state.results import MatrixReport


# Each command is a module of this package or a part of one, imported only when the command is used.
COMMANDS = {
    "init": "make a feedstock from nothing or from PyPI, or complete a checkout",
    "matrix": "show the configs of the matrix and what varies between them",
    "rerender": "write .ci_support and the CI's workflow, or check them",
    "lint": "check the recipe by conda-smithy's rules, and correct it (--fix)",
    "convert": "write recipe.yaml from meta.yaml, proven to render to the same",
    "render": "show a config's outputs: version, build string, requirements",
    "bump": "write another version with its hashes, or build number",
    "build": "build configs, or rehearse them without a conda channel",
    "cache": "show the compile caches and their sizes, or remove them",
    "runs": "list the recorded runs: when, commit, verdict, duration",
    "log": "print the log of a config's last build, or of one run (--run)",
    "report": "write the report of a run as a web page or as JSON",
    "collect": "take over the packages that the jobs of a CI have built",
    "publish": "publish packages to a channel, all or none, or withdraw one",
    "verify": "verify a package against its provenance",
    "rebuild": "rebuild a published package, and compare it byte for byte",
    "test": "install packages into clean prefixes and run their tests",
    "install": "install packages, choosing the builds that fit this machine",
    "doctor": "check that versions and a machine fit, or explain an error",
    "fleet": "build configs on many workers, provisioned for it or your own",
    "image": "make images: for builds, of packages, of a fleet's workers",
    "completion": "print code that completes commands and options in your shell",
}

# The modules of the commands that share one; their functions have the command's name.
SHARED_MODULES = {
    "render": "matrix",
    "cache": "runs",
    "log": "runs",
    "report": "runs",
    "collect": "publish",
    "rebuild": "verify",
    "test": "install",
}

READER_GONE = 141  # as of a program that SIGPIPE ends
_HOME = lazy_pattern(r"~[\w.-]*(?:/.*)?", re.DOTALL)  # as shells expand it
_LEAST_COLUMNS = 40  # of the help, on a terminal that is narrower


class Command(NamedTuple):
    """A command: ``add_arguments`` to a parser, and ``run`` with the options on the feedstock in a folder."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Path], int]  # the exit code; raises errors


def command_named(name: str) -> Command:
    """Return a command."""
    if name in SHARED_MODULES:
        module = importlib.import_module(f"kiln.cli.{SHARED_MODULES[name]}")
        return Command(getattr(module, f"add_{name}_arguments"), getattr(module, f"run_{name}"))
    if name == "fleet":  # its help needs nothing of what its actions import
        module = importlib.import_module("kiln.cli.fleet.arguments")
        return Command(
            module.add_arguments, lambda *words: int(importlib.import_module("kiln.cli.fleet.fleet").run(*words))
        )
    module = importlib.import_module(f"kiln.cli.{name}")
    return Command(module.add_arguments, module.run)


class HelpFormatter(argparse.HelpFormatter):
    """A formatter of help that learns the terminal's width without `shutil`, which argparse imports for each option."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=terminal_columns() - 2)  # as argparse


class RawHelpFormatter(argparse.RawDescriptionHelpFormatter, HelpFormatter):
    """The same, for an epilog that has its own lines."""


def terminal_columns() -> int:
    """Return the columns of the terminal as `shutil.get_terminal_size` does."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else -1).columns or 80
    except (ValueError, OSError):  # it is closed, or no terminal
        return 80


# The options of commands that have more than fit on a screen, in groups: first, without a title, what most need.
_FLEET_GROUPS = {
    "": "--provider --type --workers --all --filter --failed --spot --cost-limit --time-limit --gpu-tests",
    "what is built": "--rebuild --container --image",
    "machines": "--cache --zone --fallback --optimize --gpu-type --prices --offline --vars --additional",
    "lost workers": "--attempts --replacements --capacity-timeout --lease --unreachable-timeout --poll --keep-going",
    "remote execution": "--remote-executor --remote-credentials --remote-jobs --remote-fallback",
    "jobs of Slurm": "--slurm-folder --slurm-cores --slurm-memory --slurm-time --slurm-partition --slurm-account "
    "--slurm-qos --slurm-option",
    "runs that outlive this computer": "--detach --controller --controller-type --keep",
    "output": "--json",
}
OPTION_GROUPS = {
    "build": {
        "": "--all --changed --filter --failed --jobs --rehearse --container --dry-run",
        "configs and steps": "--rebuild --since --from-step --debug --output-id --keep-failed",
        "containers and limits": "--engine --network --memory --cores",
        "compile caches": "--compile-cache --cache-size --remote-cache --stall",
        "remote execution": "--remote-executor --remote-credentials --remote-jobs --remote-fallback",
        "sources": "--distdir --mirror",
        "rehearsals": "--python --python-channel",
        "longer than a job": "--budget --handover --notice --handover-size",
        "output": "--verbose --quiet --json --junit",
    },
    "publish": {
        "": "--to --check --attest --bundle --abort",
        "what a release may be": "--partial --allow-untested --allow-dirty --skip-existing",
        "servers and signing": "--staging --url --sigstore-config",
        "withdrawing, and the index": "--yank --delete --patch --reindex",
        "output": "--json",
    },
    "fleet run": _FLEET_GROUPS,
    "fleet plan": {**_FLEET_GROUPS, "output": "--json --html"},
    "doctor": {
        "": "--tf --cuda --cudnn --python --gpu --driver --log --error --here",
        "other parts": "--serving --compiler --host --bazel --glibc --numpy --keras --protobuf --metal",
        "other machines": "--cc --built-for --arch --system",
        "output": "--json",
    },
}


class _CompleteHelp(argparse.Action):
    """Prints the help with all options."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        assert isinstance(parser, Parser), "it adds this action itself"
        parser.is_help_complete = True
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError, and whose help fits a screen."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, **settings})
        name = self.prog.partition(" ")[2] or "build"  # of an entry script, which builds
        self._groups = {} if self.prog == "kiln" else OPTION_GROUPS.get(name, {})
        self.is_help_complete = False
        if self._groups and "--help-all" not in self._option_string_actions:  # a parent may have it
            self.add_argument("--help-all", action=_CompleteHelp, nargs=0, help="show all options, and exit")

    def format_help(self) -> str:
        """Return the help: for many options that of the first group, and the names of the others."""
        if not self._groups:
            return super().format_help()
        groups = {title: self._actions_named(names) for title, names in self._groups.items()}
        grouped = [action for actions in groups.values() for action in actions]
        options = [action for action in self._actions if action.option_strings and action.help != argparse.SUPPRESS]
        rest = [action for action in options if action not in grouped]
        places = [action for action in self._actions if not action.option_strings]
        helps = [action for action in rest if action.dest.startswith("help")]
        groups = {**groups, "": helps + groups[""], "others": [action for action in rest if action not in helps]}
        formatter = self._get_formatter()
        required = [action for action in self._actions if action.required and action.option_strings]
        formatter.add_usage("%(prog)s [OPTION ...]" + _usage_words([*required, *places]), (), ())
        formatter.add_text(self.description)
        for title, actions in {"positional arguments": places, **groups}.items():
            if self.is_help_complete or title in {"", "positional arguments"}:
                formatter.start_section(title or "options")
                formatter.add_arguments(actions)
                formatter.end_section()
        if self.is_help_complete:
            return formatter.format_help()
        more = (
            f"{title}: {', '.join(action.option_strings[-1] for action in actions)}"
            for title, actions in groups.items()
            if title and actions
        )
        lines = (f"  {line}" for line in map(_folded_to_terminal, more))
        return f"{formatter.format_help()}\nmore, by {self.prog} --help-all:\n" + "\n".join(lines) + "\n"

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Refuse an empty value and one with ~, not of the words that another parser will see.

        An empty one is not the same as none, and ~ would be a folder whose removal by name removes the home folder.
        """
        if action.nargs not in {argparse.REMAINDER, argparse.PARSER}:
            if not arg_string:
                raise argparse.ArgumentError(action, "the value is empty; is a variable of the shell not set?")
            if _HOME.fullmatch(arg_string):
                raise argparse.ArgumentError(action, f"the shell did not expand ~ in {arg_string!r}; write $HOME")
        return super()._get_value(action, arg_string)

    def _actions_named(self, names: str) -> list[argparse.Action]:
        known = self._option_string_actions
        return [known[name] for name in names.split() if name in known]

    def error(self, message: str) -> NoReturn:
        """Raise the error that argparse would print.

        Raises:
            UsageError: always.
        """
        _, _, unknown = message.partition("unrecognized arguments: ")
        word = unknown.partition(" ")[0].partition("=")[0]
        similar = did_you_mean(word, self._option_string_actions) if word.startswith("--") else ""
        if word.startswith("-C"):
            similar = f"-C stands before the command: {self.prog.replace(' ', ' -C DIR ', 1)}"
        raise UsageError(message, hint=similar or f"{self.prog} --help")


def _folded_to_terminal(text: str) -> str:
    import textwrap

    columns = max(_LEAST_COLUMNS, terminal_columns() - 4)
    return textwrap.fill(text, columns, subsequent_indent="    ", break_on_hyphens=False)


def _usage_words(actions: Sequence[argparse.Action]) -> str:
    """Return the arguments that a usage names: options that are required, and arguments by their places."""
    words = []
    for action in actions:
        name = str(action.metavar or action.dest)
        if action.option_strings:
            words.append(f" {action.option_strings[-1]} {name if action.choices is None else action.dest.upper()}")
        else:
            forms = {"*": f" [{name} ...]", "+": f" {name} [...]", "?": f" [{name}]"}
            words.append(forms.get(str(action.nargs), f" {name}"))
    return "".join(words)


class TopParser(Parser):
    """The parser of the options before the command; it lists the commands when its help is asked for."""

    def format_help(self) -> str:
        """Return the help, with the commands."""
        import textwrap

        width = max(map(len, COMMANDS)) + 2
        lead = " " * (width + 2)
        columns = max(_LEAST_COLUMNS, terminal_columns() - 2)  # as argparse
        listing = "\n".join(
            textwrap.fill(summary, columns, initial_indent=f"  {name:<{width}}", subsequent_indent=lead)
            for name, summary in COMMANDS.items()
        )
        self.epilog = f"commands:\n{listing}\n\nRun 'kiln COMMAND --help' for the options of a command."
        return super().format_help()


def command_parser_and_module(name: str, called: str | None = None) -> tuple[Parser, Command]:
    """Return the parser of a command and the command; ``called`` is the entry script's name if it is not kiln."""
    command = command_named(name)
    parser = Parser(prog=called or f"kiln {name}", description=COMMANDS[name][0].upper() + COMMANDS[name][1:] + ".")
    command.add_arguments(parser)
    return parser, command


def top_parser() -> Parser:
    """Return the parser of the options before the command."""
    parser = TopParser(
        prog="kiln",
        usage="kiln [-C DIR] COMMAND ...",
        description="Build a conda feedstock: its matrix, its packages, its tests.",
        formatter_class=RawHelpFormatter,
    )
    parser.add_argument(
        "-C",
        dest="root",
        metavar="DIR",
        type=Path,
        default=Path(),
        help="use the feedstock in this folder (default: the current one)",
    )
    parser.add_argument("-V", "--version", action="version", version=f"kiln {__version__}")
    parser.add_argument("--called", help=argparse.SUPPRESS)  # the name of the entry script that runs a command
    parser.add_argument("command", metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def dispatch(arguments: Sequence[str]) -> int:
    """Parse the command line and run its command."""
    top = top_parser().parse_args(arguments or ["--help"])
    from kiln.base.system.files import full_path

    root = full_path(top.root)
    try:
        if top.command not in COMMANDS:
            raise UsageError(
                f"unknown command {top.command!r}",
                hint=did_you_mean(top.command, COMMANDS) or "kiln --help lists the commands",
            )
        parser, command = command_parser_and_module(top.command, top.called)
        options = parser.parse_args(top.rest)
        with apply_limits_from_environment(os.environ):
            return command.run(options, root)
    except KilnError as error:
        make_hints_pasteable(error, root)
        raise


def apply_limits_from_environment(environment: Mapping[str, str]) -> AbstractContextManager[None]:
    """Return a context that applies the limits in KILN_LIMITS, if it is set; raises UsageError."""
    if not environment.get("KILN_LIMITS"):
        return contextlib.nullcontext()
    from kiln.conda.rattler import limits

    return limits.override_limits(limits.environment_limits(environment))


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; print errors, with secrets masked."""
    from kiln.cli.streams import escaped_output, masked_output

    with masked_output(os.environ, arguments), escaped_output():
        try:
            try:
                code = dispatch(arguments)
            except SystemExit as end:  # argparse's --help and --version
                code = int(end.code or 0)
            sys.stdout.flush()
        except BrokenPipeError:
            code = READER_GONE
        except (KilnError, KeyboardInterrupt, ModuleNotFoundError, OSError) as error:
            code = print_error(as_kiln_error(error))
    return code


def as_kiln_error(error: BaseException) -> KilnError:
    """Return an exception as a KilnError."""
    match error:
        case KilnError():
            return error
        case KeyboardInterrupt():
            return Interrupted("interrupted; finished work is kept, run the same command to continue")
        case ModuleNotFoundError():
            return missing_dependency_error(error)
        case OSError():
            from kiln.base.files import os_error_as_kiln_error

            if (fault := os_error_as_kiln_error(error)) is not None:
                return fault
    raise error


def print_error(error: KilnError) -> int:
    """Print an error to standard error and return its exit code."""
    with contextlib.suppress(OSError):  # its reader has gone
        print(f"error: {error}", file=sys.stderr)
    return error.exit_code


def missing_dependency_error(error: ModuleNotFoundError) -> MissingTool:
    """Return a missing dependency as a KilnError."""
    if (error.name or "").split(".")[0] == "kiln":
        raise error
    program = Path(__file__).parents[2] / ".venv" / "bin" / "kiln"
    hint = "python build-locally.py creates that environment in .venv; rename .venv if it is damaged"
    if program.exists() and program.parents[1] != Path(sys.prefix):
        hint = f"use {_relative_to_current_folder(program)}, which has them"
    return MissingTool(
        f"the Python package {error.name!r} is missing from {sys.executable}",
        why="kiln runs in an environment with its locked dependencies",
        hint=hint,
    )


# A command of kiln's after its bare name, which is neither the end of a path nor a module's.
_COMMAND = lazy_pattern(rf"(?<![\w./-])(?<!-m )kiln(?= (?:--help|{'|'.join(COMMANDS)})\b)")


def make_pasteable(text: str, root: Path) -> str:
    """Return a text with its kiln commands as the user's shell starts them on the feedstock at ``root``."""
    if not _COMMAND.search(text):
        return text
    import shlex

    folder = () if root.absolute() == Path.cwd() else ("-C", str(root))
    program = shlex.join((*kiln_command_words(), *folder))
    return _COMMAND.sub(lambda _: program, text)


def make_hints_pasteable(error: KilnError, root: Path) -> None:
    """Make the commands in the hints of an error pasteable."""
    error.hint = make_pasteable(error.hint, root)
    for other in error.others:
        make_hints_pasteable(other, root)


NAMES = 3  # of configs in an error
# The options that both commands need again, by the names of their arguments, with their defaults.
REPEATED = {
    "engine": ("--engine", "rattler-build"),
    "container": ("--container", None),
    "network": ("--network", "granted"),
    "distdir": ("--distdir", None),
    "mirror": ("--mirror", None),
    "python": ("--python", None),
    "python_channel": ("--python-channel", "conda-forge"),
}


def failed_run_error(
    report: MatrixReport, errors: Mapping[str, KilnError], options: argparse.Namespace, *, exit_code: int
) -> KilnError:
    """Return the error of a run in which configs are neither built nor cached, with the commands to try next."""
    import shlex

    from kiln.base.text import count_text, first_of
    from kiln.state.results import GOOD, ConfigState

    failures = {config.config: config.state for config in report.configs if config.state not in GOOD}
    total = f"{len(failures)} of {count_text(len(report.configs), 'config')}"
    if set(failures.values()) == {ConfigState.LOCKED}:
        what = f"{total} locked by another process: {first_of(failures, NAMES)}"
        return AlreadyRunning(what, hint="wait for it, then repeat")
    debugged = [] if options.rehearsal else [name for name, error in errors.items() if isinstance(error, BuildFailed)]
    program, repeated = _command_prefix(sys.argv[1:]), ["--rehearse"] if options.rehearsal else []
    for name, (flag, default) in REPEATED.items():
        value = getattr(options, name)
        repeated += [] if value == default else [flag, str(value)]
    commands = [(*program, "--failed", *repeated), *((*program, name, "--debug", *repeated) for name in debugged[:1])]
    hint = "\n       ".join(map(shlex.join, commands))
    return error_class_of_exit_code(exit_code)(f"{total} not built: {first_of(failures, NAMES)}", hint=hint)


def _command_prefix(words: Sequence[str]) -> tuple[str, ...]:
    """Return the first words of the command line that this process was started with."""
    top, _ = top_parser().parse_known_args(words)
    elsewhere = top.root.absolute() != Path.cwd()
    if top.called:
        return ("python", str(top.root / top.called) if elsewhere else top.called)
    return (*kiln_command_words(), *(("-C", str(top.root)) if elsewhere else ()), "build")


def kiln_command_words() -> tuple[str, ...]:
    """Return the words that start this kiln in the user's shell: its name, or its path where that is not found."""
    import shutil

    own, on_path = Path(sys.executable).with_name("kiln"), shutil.which("kiln")
    if not own.exists():
        return ("kiln",) if on_path else (_relative_to_current_folder(Path(sys.executable)), "-m", "kiln")
    return ("kiln",) if on_path and Path(on_path).samefile(own) else (_relative_to_current_folder(own),)


def _relative_to_current_folder(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
