"""Open a shell in the environment of a build script, for ``--debug``.

A config's process prepares the environment as for a build. Then the user gets the terminal, in a container like the
build's, or on the host.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from typing import TYPE_CHECKING, Any

from kiln import files, process_runner
from kiln.errors import BuildFailed
from kiln.executor import conda_build_setup_and_results, conda_forge_variables_and_paths
from kiln.job.messages import MARK, error_from_json, parse_message
from kiln.run.config_build_process_main import ConfigBuild

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kiln.job.job_descriptions import ConfigJob
    from kiln.run.plan import RunPlan

# An interactive shell on a terminal; else one that reads its commands.
SHELL = '. "$1"; if [ -t 0 ]; then exec bash --norc -i; else exec bash -s; fi'


def open_debug_shell(planned: RunPlan, *, terminal: Mapping[str, str] | None, show: Callable[[str], None]) -> int:
    """Prepare an output of the plan's one config, open a shell there, and return the shell's exit code.

    ``terminal`` are the variables of the terminal at standard input, None without one. ``show`` gets the progress of
    the preparation.

    Raises:
        KilnError: the errors of a build.
    """
    ((config, planned_job),) = planned.jobs_of.items()
    log = planned.layout.safe_path("logs", "debug", f"{config}.log")
    job = dataclasses.replace(planned_job, log=str(log), parent=os.getpid())
    entry = ConfigBuild.from_job(job)
    with entry.hold_config_lock():  # until the shell ends, so that no other run removes the prepared files
        places = {} if entry.task.uses_other_engine else prepare_build_script(job, planned, show)
        return run_shell(entry, places, terminal)


def prepare_build_script(job: ConfigJob, planned: RunPlan, show: Callable[[str], None]) -> Mapping[str, str]:
    """Have a config's process do everything before the script; return the script's paths."""
    result: dict[str, Any] = {}

    def show_or_store_message(line: str) -> None:
        message = parse_message(line)
        if message is None:
            show(line)
        elif message["kind"] == "step":
            show(f"- {message['title']}")
        elif message["kind"] == "result":
            result.update(message)

    result_of_process = process_runner.run(
        conda_forge_variables_and_paths.module_command("run.config_build_process_main"),
        env=planned.options.client,
        cwd=conda_forge_variables_and_paths.PACKAGE_ROOT,
        on_line=show_or_store_message,
        stdin=job.as_text(),
        own=MARK,
    )
    if result.get("error"):
        raise error_from_json(result["error"])
    if "debug" not in result:
        raise BuildFailed(
            f"{job.config} could not be prepared: exit code {result_of_process.exit_code}", hint=f"read {job.log}"
        )
    places: Mapping[str, str] = result["debug"]
    return places


def shell_startup_lines(places: Mapping[str, str]) -> str:
    """Return the shell lines that change to a script's folder, and describe it."""
    name = places["name"]
    script = places["script"].removeprefix(f"{places['work']}/")
    lines = (
        f"{name}: {places['work']}",
        f"  sources and compiled files:    {places['sources']}  ($SRC_DIR)",
        f"  host environment:              {places['host']}  ($PREFIX)",
        f"  build environment:             {places['build']}  ($BUILD_PREFIX)",
        f"run the script with ./{script}, leave with 'exit'",
        "changes here do not get into a package"
        if places["sources"] == places["work"]
        else "changes in $SRC_DIR stay for the config's next build; --rebuild removes them",
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


def run_shell(config: ConfigBuild, places: Mapping[str, str], terminal: Mapping[str, str] | None) -> int:
    """Open the shell in the prepared environment."""
    task, executor = config.task, config.executor
    if task.uses_other_engine:
        return executor.run_on_terminal(conda_build_setup_and_results.write_engine_script(task, executor), terminal)
    entered = task.folder / "enter.sh"  # not below, where a script may have replaced a folder by a link
    files.write_text(entered, shell_startup_lines(places))
    return executor.run_on_terminal(("bash", "-c", SHELL, "kiln", str(executor.path_inside(entered))), terminal)
