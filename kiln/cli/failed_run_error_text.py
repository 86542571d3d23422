"""The last lines of a failed build: an error, and the commands that continue, ready to be pasted."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.cli import top_parser
from kiln.errors import AlreadyRunning, BuildFailed, KilnError, error_class_of_exit_code

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from kiln.model.run import ConfigRun, MatrixReport

NAMES = 3  # of configs in the error
PROGRAMS = ("kiln", "kiln.exe", "kiln.cmd")  # the last two on Windows: pip's, and the one of the set-up
# The options that both commands need again, by the names of their arguments, with their defaults.
REPEATED = {
    "engine": ("--engine", "rattler-build"),
    "container": ("--container", None),
    "network": ("--network", "granted"),
}


def failed_run_error(
    report: MatrixReport, errors: Mapping[str, KilnError], options: argparse.Namespace, *, exit_code: int
) -> KilnError:
    """Return the error of a run in which configs are neither built nor cached, with the commands to try next."""
    from kiln.console.text import count_text
    from kiln.model.run import GOOD, ConfigState
    from kiln.operating_system.shell_quoting import joined_command_line

    failures = [config for config in report.configs if config.state not in GOOD]
    locked = [config for config in failures if config.state is ConfigState.LOCKED]
    others = [config for config in failures if config.state is not ConfigState.LOCKED]
    total = f"{len(failures)} of {count_text(len(report.configs), 'config')}"
    if not others:
        return AlreadyRunning(
            f"{total} locked by another process: {_first_config_names(locked)}", hint="wait for it, then repeat"
        )
    debugged = [] if options.rehearsal else [name for name, error in errors.items() if isinstance(error, BuildFailed)]
    program, repeated = _command_prefix(sys.argv[1:]), _options_to_repeat(options)
    commands = [
        (*program, "--failed", *repeated),
        *((*program, name, "--debug", *repeated) for name in debugged[:1]),
    ]
    hint = "\n       ".join(map(joined_command_line, commands))
    return error_class_of_exit_code(exit_code)(f"{total} not built: {_first_config_names(failures)}", hint=hint)


def _first_config_names(configs: Sequence[ConfigRun]) -> str:
    more = [f"and {len(configs) - NAMES} more"] if len(configs) > NAMES else []
    return ", ".join([*(config.config for config in configs[:NAMES]), *more])


def _command_prefix(words: Sequence[str]) -> tuple[str, ...]:
    """Return the first words of the command line that this process was started with."""
    top, _ = top_parser().parse_known_args(words)
    elsewhere = top.root.absolute() != Path.cwd()
    if top.called:
        return ("python", str(top.root / top.called) if elsewhere else top.called)
    return (*kiln_command_words(), *(("-C", str(top.root)) if elsewhere else ()), "build")


def kiln_command_words() -> tuple[str, ...]:
    """Return the words that start this kiln in the user's shell: its name, or its path where that is not found."""
    programs = [Path(sys.executable).with_name(name) for name in PROGRAMS]
    own, on_path = next((program for program in programs if program.exists()), None), shutil.which("kiln")
    if own is None:
        return ("kiln",) if on_path else (_relative_to_current_folder(Path(sys.executable)), "-m", "kiln")
    return ("kiln",) if on_path and Path(on_path).samefile(own) else (_relative_to_current_folder(own),)


def _relative_to_current_folder(path: Path) -> str:
    """Return a path, relative to the current folder if it is there."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _options_to_repeat(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the options that select where and how configs are built."""
    values = ((flag, getattr(options, name), default) for name, (flag, default) in REPEATED.items())
    words = [word for flag, value, default in values if value != default for word in (flag, value)]
    return (*(["--rehearse"] if options.rehearsal else []), *words)
