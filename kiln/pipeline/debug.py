"""A shell in the place where a script runs, with everything there that the script finds: what ``--debug`` opens.

A cell's process makes it all ready as it would for a build. Then a person has the terminal, in a container like the
build's, or on the host.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from kiln import command, files
from kiln.errors import BuildFailed
from kiln.pipeline import contract, done, errand
from kiln.pipeline.cell import CellBuild
from kiln.pipeline.failures import error_from
from kiln.pipeline.layout import Layout
from kiln.pipeline.voice import heard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kiln.model.feedstock import Feedstock
    from kiln.pipeline.jobs import CellJob
    from kiln.pipeline.plan import RunPlan

# On a terminal a shell for a person; else one that reads what it is to do.
SHELL = '. "$1"; if [ -t 0 ]; then exec bash --norc -i; else exec bash -s; fi'


def debug(
    feedstock: Feedstock, planned: RunPlan, *, terminal: Mapping[str, str] | None, say: Callable[[str], None]
) -> int:
    """Make an output of the plan's one cell ready, and open a shell there; returns the shell's exit code.

    ``terminal`` are the variables of the terminal that standard input is, None when it is none. ``say`` hears of what
    is done before.

    Raises:
        KilnError: whatever a build raises that gets so far.
    """
    ((config, planned_job),) = planned.jobs_of.items()
    layout = Layout.of(feedstock)
    log = layout.root / "logs" / "debug" / f"{config}.log"
    job = dataclasses.replace(planned_job, log=str(log), parent=os.getpid())
    cell = CellBuild.of(job)
    places = {} if cell.task.is_foreign else made_ready(job, planned, layout, say)
    with done.waiting(cell.task.lock, while_true=lambda: False):
        return shell(cell, places, terminal)


def made_ready(job: CellJob, planned: RunPlan, layout: Layout, say: Callable[[str], None]) -> Mapping[str, str]:
    """Have a cell's process do everything that comes before the script; returns the script's places."""
    file = layout.root / "work" / f"{job.config}.job.json"
    result: dict[str, Any] = {}

    def hear(line: str) -> None:
        told = heard(line)
        if told is None:
            say(line)
        elif told["kind"] == "step":
            say(f"- {told['title']}")
        elif told["kind"] == "result":
            result.update(told)

    job.write(file)
    words = (sys.executable, "-c", contract.MAIN.format(module="cell"), str(file))
    ended = command.run(words, env=planned.client, cwd=contract.HOUSE, on_line=hear)
    if result.get("error"):
        raise error_from(result["error"])
    if "debug" not in result:
        raise BuildFailed(f"{job.config} was not made ready: exit code {ended.exit_code}", hint=f"read {job.log}")
    places: Mapping[str, str] = result["debug"]
    return places


def entrance(places: Mapping[str, str]) -> str:
    """Return the shell lines that lead to where a script runs, and say what is there."""
    name = places["name"]
    script = places["script"].removeprefix(f"{places['work']}/")
    lines = (
        f"{name}: {places['work']}",
        f"  sources and what was compiled: {places['sources']}  ($SRC_DIR)",
        f"  host environment:              {places['host']}  ($PREFIX)",
        f"  build environment:             {places['build']}  ($BUILD_PREFIX)",
        f"run the script with ./{script}, leave with 'exit'",
        "nothing that is done here gets into a package"
        if places["sources"] == places["work"]
        else "what is changed in $SRC_DIR stays there for the cell's next build; --rebuild begins it anew",
    )
    return "\n".join(
        (
            f"cd {shlex.quote(places['work'])}",
            f". {shlex.quote(places['environment'])}",
            f"export SRC_DIR={shlex.quote(places['sources'])} PS1={shlex.quote(f'[debug {name}] $ ')}",
            f"printf '%s\\n' {' '.join(map(shlex.quote, lines))}",
            "",
        )
    )


def shell(cell: CellBuild, places: Mapping[str, str], terminal: Mapping[str, str] | None) -> int:
    """Open the shell where the build was made ready."""
    task, site = cell.task, cell.site
    if task.is_foreign:
        return site.hand_over(errand.script(task, site), terminal)
    entered = task.folder / "debug" / "enter.sh"
    files.write_text(entered, entrance(places))
    return site.hand_over(("bash", "-c", SHELL, "kiln", str(site.seen(entered))), terminal)
