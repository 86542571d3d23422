"""Which cells a command is about: those named, all, those that failed, or the one that a person picks."""

from __future__ import annotations

import fnmatch
import sys
from typing import TYPE_CHECKING

from kiln.cli.environment import machine_of
from kiln.errors import UnknownConfig, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from kiln.model.feedstock import Feedstock
    from kiln.model.run import CellState


def wanted(feedstock: Feedstock, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the cells to build: those named, all, those that failed, or the one that a person picks.

    A rehearsal is of the CPU cell of the machine's Python when nothing says which.

    Raises:
        UnknownConfig: when a pattern matches no cell.
        UsageError: when nothing says which of several, and there is nobody to ask.
    """
    names = all_configs(feedstock, options)
    if options.configs and not options.failed:
        return names
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
    """Return the names of all cells, or of those that are named, as far as they match the filter.

    Raises:
        UnknownConfig: when there is none.
    """
    named = dict.fromkeys(name.removesuffix(".yaml").removeprefix(".ci_support/") for name in options.configs)
    names = named or sorted(file.stem for file in feedstock.configs.glob("*.yaml"))
    matching = tuple(fnmatch.filter(names, options.filter or "*"))
    if not matching:
        those = f" of {', '.join(named)}" if named else ""
        what = f"no cell{those} matches {options.filter!r}" if options.filter else f"{feedstock.configs} holds no cell"
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
