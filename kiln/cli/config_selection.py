"""The configs that a command line selects: by name, all, failed ones, or one picked from a menu."""

from __future__ import annotations

import fnmatch
import sys
from typing import TYPE_CHECKING

from kiln.cli.environment_filters import host_machine_from_options
from kiln.errors import KilnError, UnknownConfig, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from kiln.model.feedstock import Feedstock
    from kiln.model.run import ConfigState


def selected_configs(feedstock: Feedstock, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the configs to build: the named ones, all, the failed ones, or one picked by the user.

    The default of a rehearsal is the only config, or the CPU config of the machine's Python.

    Raises:
        UnknownConfig: if no config matches.
        UsageError: if several configs match and stdin is not a terminal.
    """
    names = matching_configs(feedstock, options)
    if options.configs and not options.failed:
        return names
    if options.failed:
        from kiln.run import feedstock_run

        return failed_configs(names, feedstock_run.last_config_states(feedstock, rehearsal=options.rehearsal))
    from kiln.run import buildable_platforms

    containers = getattr(options, "container", None) != "none"
    names, note = buildable_platforms.buildable_configs(
        feedstock, names, rehearsal=options.rehearsal, containers=containers
    )
    if note:
        print(note, file=sys.stderr)
    if options.rehearsal and not (options.all or options.filter or len(names) == 1):
        from kiln.builder.rehearsal_config_and_inputs import cpu_config_for_machine

        return (cpu_config_for_machine(feedstock, host_machine_from_options(options), names),)
    if options.all or options.rehearsal or len(names) == 1:
        return names
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"no config selected, {len(names)} are available",
            hint="name a CONFIG (kiln matrix lists them), or use --all",
        )
    return (prompt_for_config(names, default_menu_config(feedstock, names)),)


def failed_configs(names: tuple[str, ...], states: Mapping[str, ConfigState]) -> tuple[str, ...]:
    """Return the configs that failed or were interrupted."""
    from kiln.model.run import ConfigState

    good = {ConfigState.DONE, ConfigState.CACHED, ConfigState.LOCKED, ConfigState.WAITING}
    return tuple(name for name in names if states.get(name, ConfigState.DONE) not in good)


def matching_configs(feedstock: Feedstock, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the names of the named configs, or of all configs, that match the filter.

    Raises:
        UnknownConfig: if the config does not exist.
    """
    requested = dict.fromkeys(name.removesuffix(".yaml").removeprefix(".ci_support/") for name in options.configs)
    names = requested or feedstock.config_names
    matching = tuple(fnmatch.filter(names, options.filter or "*"))
    if not matching:
        scope = f" of {', '.join(requested)}" if requested else ""
        what = (
            f"no config{scope} matches {options.filter!r}"
            if options.filter
            else f"no configs in {feedstock.config_folder}"
        )
        raise UnknownConfig(what, hint="kiln matrix lists the configs, kiln rerender writes them")
    return matching


def default_menu_config(feedstock: Feedstock, names: tuple[str, ...]) -> str:
    """Return the config that the menu offers: the CPU config of the running Python, or the first one."""
    from kiln.builder.rehearsal_config_and_inputs import cpu_config_for_python

    try:
        return cpu_config_for_python(feedstock, f"{sys.version_info.major}.{sys.version_info.minor}", names).name
    except KilnError:
        return names[0]


def prompt_for_config(names: tuple[str, ...], default: str) -> str:
    """Ask the user to pick a config by its number; an empty line picks the default.

    Raises:
        UsageError: if the answer is not one of the numbers.
    """
    selected = names.index(default) + 1
    print("config not selected, please choose from the following:\n", file=sys.stderr)
    for number, name in enumerate(names, 1):
        print(f"{number}. {name}", file=sys.stderr)
    print(f"\nnumber [{selected}]> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    answer = str(selected) if line == "\n" else line.strip()  # not at the end of the input, which is no line
    if not answer.isdecimal() or not 1 <= int(answer) <= len(names):
        raise UsageError(f"invalid choice {answer!r}: expected a number from 1 to {len(names)}")
    return names[int(answer) - 1]
