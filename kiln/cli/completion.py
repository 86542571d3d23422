"""``kiln completion``: shell completion of commands, options and config names (argcomplete)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError
from kiln.cli import main

if TYPE_CHECKING:
    import argparse

PROGRAMS = ("kiln", "build-locally.py")
SHELLS = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/completions/kiln.fish"}
CONFIG_ARGUMENTS = frozenset({"configs", "config", "partial"})  # arguments with config names as values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln completion``."""
    parser.add_argument("shell", choices=SHELLS, help="print the completion code of this shell")
    parser.epilog = 'Bash: eval "$(kiln completion bash)" in ~/.bashrc. Fish: kiln completion fish > ' + SHELLS["fish"]


def run(options: argparse.Namespace, root: Path) -> int:  # noqa: ARG001 - the signature of a command
    """Print the shell code that sets up completion."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(list(PROGRAMS), shell=options.shell))
    return 0


def answer_completion_request() -> None:
    """Answer a completion request in argcomplete's protocol, and exit."""
    import argcomplete

    argcomplete.autocomplete(parser_for_command_line(os.environ.get("COMP_LINE", "")))


def parser_for_command_line(line: str) -> argparse.ArgumentParser:
    """Return the parser for an unfinished command line; only its own command is imported."""
    from argcomplete.lexers import split_line

    _, last, _, words, _ = split_line(line)
    program, *rest = (*words, last)
    if Path(program).name == "build-locally.py":
        parser, _ = main.command_parser_and_module("build", "build-locally.py")
        return _add_config_completion(parser, Path(program).absolute().parent)
    top = main.Parser(prog="kiln")
    top.add_argument("-C", dest="root", metavar="DIR", type=Path, default=Path())
    top.add_argument("--version", action="store_true")
    commands = top.add_subparsers(dest="command")
    typed = next((word for word in rest if word in main.COMMANDS), None)
    root = Path(rest[rest.index("-C") + 1]) if "-C" in rest[:-1] else Path()
    for name, summary in main.COMMANDS.items():
        if name != typed:
            commands.add_parser(name, help=summary)
    if typed:
        parser, _ = main.command_parser_and_module(typed)
        commands.add_parser(
            typed, parents=[_add_config_completion(parser, root)], add_help=False, help=main.COMMANDS[typed]
        )
    return top


def _add_config_completion(parser: main.Parser, root: Path) -> main.Parser:
    """Complete the arguments for config names with the configs of a feedstock."""

    def existing_config_names(**_: Any) -> list[str]:
        from kiln.recipe import feedstock

        with suppress(KilnError, OSError):
            return list(feedstock.load(root).config_names)
        return []

    for action in parser._actions:  # noqa: SLF001 - argparse has no other list of them
        if action.dest in CONFIG_ARGUMENTS:
            action.completer = existing_config_names  # type: ignore[attr-defined]
    return parser
