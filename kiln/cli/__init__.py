"""The command line: the only reader of the environment, the only one that prints."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from kiln import __version__
from kiln.errors import Interrupted, KilnError, MissingTool, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

# Each command is a module beside this one, imported only when it is the one asked for.
COMMANDS = {
    "matrix": "show the cells of the matrix and what varies between them",
    "rerender": "write .ci_support and the CI's workflow from the recipe and the variant files, or check them",
    "render": "show every output of a cell: version, build string, requirements, tests",
    "build": "build cells, or rehearse one from upstream's wheel (--rehearse)",
    "cache": "show what compiles have left in their caches, and remove what is no longer wanted",
    "report": "write a run over the matrix as one web page",
    "publish": "put what was built into a channel, all or nothing, or withdraw a package",
    "verify": "see whether a package is what its channel's records say of its making",
    "rebuild": "build a published package again from its record, and compare it byte for byte",
    "check": "install packages into clean prefixes and run their tests",
    "install": "install packages into a prefix, the builds that fit this machine",
    "doctor": "tell whether versions, a GPU and a machine work together, and what a failure means",
    "fleet": "build cells on many machines at once: plan, run, status, down, sweep",
    "image": "make images: to build cells in, of TensorFlow and its server, and of machines to try the fleet on",
}

BUG = 1


class Command(Protocol):
    """What each module of a command offers."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments."""

    def run(self, options: argparse.Namespace, root: Path) -> int:
        """Do the work for the feedstock at ``root`` and return the exit code; failures are raised."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are kiln's own errors."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print.

        Raises:
            UsageError: always.
        """
        raise UsageError(message, hint=self.near(message) or f"{self.prog} --help")

    def near(self, message: str) -> str:
        """Return the option that an unknown one was perhaps meant to be."""
        _, _, unknown = message.partition("unrecognized arguments: ")
        word = unknown.partition(" ")[0].partition("=")[0]
        return nearest(word, self._option_string_actions) if word.startswith("--") else ""


def parser_for(name: str, called: str | None = None) -> tuple[Parser, Command]:
    """The parser and the module of one command; ``called`` is the program by which it was, if that is not kiln."""
    command = cast("Command", importlib.import_module(f"kiln.cli.{name}"))
    parser = Parser(prog=called or f"kiln {name}", description=COMMANDS[name][0].upper() + COMMANDS[name][1:] + ".")
    command.arguments(parser)
    return parser, command


def top_parser() -> Parser:
    """The parser of what stands before the command."""
    width = max(map(len, COMMANDS)) + 2
    listing = "\n".join(f"  {name:<{width}}{summary}" for name, summary in COMMANDS.items())
    parser = Parser(
        prog="kiln",
        usage="kiln [-C DIR] COMMAND ...",
        description="Build a conda feedstock: its matrix, its packages, its tests.",
        epilog=f"commands:\n{listing}\n\n'kiln COMMAND --help' tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    here = Path()
    parser.add_argument("-C", dest="root", metavar="DIR", type=Path, default=here, help="the feedstock (default: here)")
    parser.add_argument("--version", action="version", version=f"kiln {__version__}")
    parser.add_argument("--called", help=argparse.SUPPRESS)  # the name of the program that hands over to a command
    parser.add_argument("command", metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def dispatch(arguments: Sequence[str]) -> int:
    """Parse the command line and run its command.

    Raises:
        KilnError: whatever the command raises.
    """
    top = top_parser().parse_args(arguments or ["--help"])
    if top.command not in COMMANDS:
        raise UsageError(
            f"there is no command {top.command!r}",
            hint=nearest(top.command, COMMANDS) or "kiln --help lists the commands",
        )
    parser, command = parser_for(top.command, top.called)
    return command.run(parser.parse_args(top.rest), top.root.absolute())


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code, failures printed."""
    try:
        return dispatch(arguments)
    except SystemExit as end:  # argparse's --help and --version
        return int(end.code or 0)
    except KilnError as error:
        return complain(error)
    except KeyboardInterrupt:
        return complain(Interrupted("interrupted; what was finished is kept, the same command goes on from there"))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on; let the last flush succeed
        return BUG
    except ModuleNotFoundError as error:
        return complain(explained(error))


def complain(error: KilnError) -> int:
    """Print a failure to standard error and return its exit code."""
    print(f"error: {error}", file=sys.stderr)
    return error.exit_code


def explained(error: ModuleNotFoundError) -> MissingTool:
    """Tell a missing dependency from a fault of kiln's own.

    Raises:
        ModuleNotFoundError: when the missing module is kiln's own.
    """
    if (error.name or "").split(".")[0] == "kiln":
        raise error
    return MissingTool(
        f"the Python package {error.name!r} is missing from {sys.executable}",
        why="kiln runs in an environment with its locked dependencies",
        hint="python build-locally.py, which makes that environment in .venv; delete .venv when it is damaged",
    )
