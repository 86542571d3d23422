"""The stages composed: a cell goes in, packages that were installed and tested come out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import expand, render
from kiln.ledger import Ledger
from kiln.pipeline.choice import of_machine as cell_of_machine
from kiln.pipeline.contract import PASSED_ON as CONTRACT
from kiln.pipeline.layout import Layout
from kiln.pipeline.machine import Machine
from kiln.pipeline.plan import RunPlan, as_text, prepare
from kiln.pipeline.wishes import Wishes, run_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kiln.errors import KilnError
    from kiln.model.feedstock import Feedstock
    from kiln.model.run import CellState, MatrixReport
    from kiln.model.watch import Watcher

__all__ = [
    "CONTRACT",
    "Machine",
    "RunPlan",
    "Wishes",
    "as_text",
    "build",
    "callers_variables",
    "cell_of_machine",
    "debug",
    "last_states",
    "plan",
    "run_arguments",
]


def plan(
    feedstock: Feedstock, wishes: Wishes, machine: Machine, *, on_line: Callable[[str], None] | None = None
) -> RunPlan:
    """Return what a run would do; raises what `prepare` raises. ``on_line`` hears of images while they are fetched."""
    layout = Layout.of(feedstock, rehearsal=wishes.rehearsal)
    with Ledger(layout.ledger) as ledger:
        return prepare(feedstock, wishes, machine=machine, ledger=ledger, layout=layout, on_line=on_line)


def callers_variables(feedstock: Feedstock, configs: Iterable[str]) -> frozenset[str]:
    """Return the names of the caller's variables that the recipe hands to its scripts, see ``build/script_env``."""
    from kiln.build import callers_variables as of

    if "script_env" not in feedstock.meta.read_text(encoding="utf-8", errors="replace"):
        return frozenset()
    return frozenset(
        name for config in configs for name in of(render.render(feedstock, expand.read(feedstock, config)))
    )


def build(feedstock: Feedstock, planned: RunPlan, watcher: Watcher) -> tuple[MatrixReport, Mapping[str, KilnError]]:
    """Build what a plan says; returns what became of every cell, and why those failed that did.

    Raises:
        KeyboardInterrupt: when the run was stopped; what was finished is kept.
    """
    from kiln.pipeline.matrix import Run

    layout = Layout.of(feedstock, rehearsal=planned.rehearsal)
    with Ledger(layout.ledger) as ledger:
        run = Run(planned, ledger=ledger, layout=layout, watcher=watcher)
        try:
            return run.execute(), run.errors
        finally:
            layout.compile_caches.trim(planned.cache_bound)


def debug(
    feedstock: Feedstock, planned: RunPlan, *, terminal: Mapping[str, str] | None, say: Callable[[str], None]
) -> int:
    """Open a shell where an output's script runs, see `kiln.pipeline.debug`, and return its exit code."""
    from kiln.pipeline.debug import debug as opened

    return opened(feedstock, planned, terminal=terminal, say=say)


def last_states(feedstock: Feedstock, *, rehearsal: bool) -> Mapping[str, CellState]:
    """Return what became of each cell in the last run, of rehearsals or of builds, that had it."""
    with Ledger(Layout.of(feedstock).ledger) as ledger:
        return ledger.states(rehearsal=rehearsal)
