"""Run rattler-build on a planned step in a separate process, and return its answer or raise its failure."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kiln import files, package_cache, process_runner, rattler_process
from kiln.build import license_files_not_found, rattler_build_failure_kinds, script_output_filter
from kiln.build.rattler_build_paths import ENGINE_FOLDER, UP_TO_STEP, build_prefixes, host_prefixes
from kiln.build.rattler_build_secrets import (
    engine_environment,
    recipe_with_merged_secrets,
    secret_names_of_step,
    source_fetch_environment,
    temporary_credentials_file,
)
from kiln.build.source_fetch import SourceFetcher
from kiln.build.source_mirrors import SourceMirrors, recipe_with_mirror_urls
from kiln.build.unpackable_prefix_files import SPECIAL, find_special_files, message_naming_files
from kiln.errors import DownloadFailed, KilnError, program_output_with_margin
from kiln.model.build_and_test_steps import BuildStep, CompileStep, FetchedSource
from kiln.model.rendered import COMPILE
from kiln.recipe_script_launch_commands import lines_without_shell_trace
from kiln.serialization import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


DIRECT = SourceMirrors()
_NAMES = {COMPILE: "the recipe's own build step"}
_SHELL = "shell"  # the folder, in a step's, of the shell that the engine runs
_FILTERED = "KILN_FILTERED"  # a variable of a script whose output the filter reads
PACKAGE_ROOT = Path(__file__).parents[2]  # the folder that holds the kiln package, for `python -m`


def build_package(
    step: BuildStep | CompileStep,
    *,
    environment: Mapping[str, str],
    on_line: Callable[[str], None] | None = None,
    origins: SourceMirrors = DIRECT,
) -> Path:
    """Make one package in a separate process and return its path, inside the step's folder.

    Raises:
        BuildFailed: with the end of the engine's log.
        HashMismatch: when no archive of the sources has the recipe's hash; no script has run then.
        DownloadFailed: when a channel or a source cannot be reached.
        DiskFull: when the disk is full.
    """
    fields: dict[str, Any] = {"keep": True}
    if isinstance(step, BuildStep):
        fields = {"index": step.index, "edits": step.edits, "pins": to_json(step.pins)}
        fields |= {"packed": step.packed, "recipe_folder": str(step.recipe_folder or "")}
    run = partial(_run_engine_process, step, fields, environment=environment, on_line=on_line, origins=origins)
    package = Path(_run_with_unpack_fallback(step, run)["package"])
    if isinstance(step, BuildStep):
        files.remove(step.folder / ENGINE_FOLDER)
    return package


def prepare_script_run(
    step: BuildStep | CompileStep,
    *,
    environment: Mapping[str, str],
    on_line: Callable[[str], None] | None = None,
    origins: SourceMirrors = DIRECT,
) -> Mapping[str, str]:
    """Make everything that a step's script needs, without running it; return the paths by their names.

    They are ``work``, the script's folder, ``script``, ``environment``, the file that it sources, and the prefixes
    ``host`` and ``build``. Raises what `build_package` does.
    """
    run = partial(_run_engine_process, step, {"debug": True}, environment=environment, on_line=on_line, origins=origins)
    return _run_with_unpack_fallback(step, run)


def _run_with_unpack_fallback(
    step: BuildStep | CompileStep,
    run: Callable[[tuple[FetchedSource, ...]], tuple[Mapping[str, str], process_runner.ProcessResult]],
) -> Mapping[str, str]:
    """Run the engine's process for sources that kiln fetches, and return its answer.

    An archive of another kind than its name says, which the engine cannot unpack, is unpacked by kiln in a second run.
    """
    result, ended = run(step.fetched)
    if step.archives and rattler_build_failure_kinds.NOT_UNPACKED in result.get("error", ""):
        result, ended = run((*step.fetched, *step.archives))
    if not result or "error" in result:
        error = result.get("error", f"the engine ended with exit code {ended.exit_code}")
        raise build_step_error(step, error, ended.tail)
    return result


def _run_engine_process(
    step: BuildStep | CompileStep,
    more: Mapping[str, Any],
    fetched: tuple[FetchedSource, ...],
    *,
    environment: Mapping[str, str],
    on_line: Callable[[str], None] | None,
    origins: SourceMirrors,
) -> tuple[Mapping[str, str], process_runner.ProcessResult]:
    """Run the engine's process once, with some sources fetched by kiln; return its answer and its end."""
    _discard_damaged_packages(step, environment, on_line)  # a script that was killed has left its prefixes
    files.remove(step.folder)
    step.folder.mkdir(parents=True)
    sources = SourceFetcher(
        folder=step.folder / "sources",
        origins=origins,
        env=source_fetch_environment(environment, secret_names_of_step(step)),
        on_line=on_line or (lambda _line: None),
    )
    recipe = sources.recipe_with_fetched_sources(
        recipe_with_mirror_urls(recipe_with_merged_secrets(step), origins), fetched
    )
    if not more.get("debug"):  # a person reads the script's output themselves
        recipe, environment = filter_script_output(recipe, environment, step.folder)
    job, answer = step.folder / "job.json", step.folder / "result.json"
    places = {"folder": str(step.folder), "result": str(answer), "parent": os.getpid()}
    settings = {"platforms": to_json(step.platforms), "settings": to_json(step.settings)}
    fields = {**places, "recipe": recipe, "channels": step.channels, **settings, **more}
    files.write_text(job, json.dumps(fields, indent=1))
    argv = (sys.executable, "-m", "kiln.build.rattler_build_worker", str(job))
    variables = {**engine_environment(secret_names_of_step(step), environment), **step.environment}
    idle = rattler_process.current_limits().stall
    with temporary_credentials_file(step) as access:
        env = {**variables, **access}
        try:
            result_of_process = process_runner.run(argv, env=env, cwd=PACKAGE_ROOT, idle=idle, on_line=on_line)
        finally:
            _discard_damaged_packages(step, environment, on_line)
    files.remove(sources.folder)  # the work directory has copies
    if result_of_process.idle:
        waited_for = find_special_files(host_prefixes(step.folder))
        if waited_for:
            raise build_step_error(
                step,
                message_naming_files(SPECIAL, waited_for),
                result_of_process.tail,
            )
        raise DownloadFailed(
            f"{channel_hosts(step.channels)} has sent nothing for {idle} s",
            why="the engine waited for it without doing anything else",
            hint=f"see that the server answers, or wait longer: {rattler_process.VARIABLE}='stall={2 * idle}'",
        )
    result: dict[str, str] = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else {}
    return result, result_of_process


def _discard_damaged_packages(
    step: BuildStep | CompileStep, environment: Mapping[str, str], on_line: Callable[[str], None] | None
) -> None:
    """Remove the packages from the cache that the step's script has changed in its prefixes."""
    prefixes = (*host_prefixes(step.folder), *build_prefixes(step.folder))
    if "RATTLER_CACHE_DIR" not in environment or not prefixes:
        return
    for changed in package_cache.discard_damaged_entries(Path(environment["RATTLER_CACHE_DIR"], "pkgs"), prefixes):
        if on_line is not None:
            on_line(f"the script has changed {changed}, which is removed from the cache and unpacked anew when needed")


def filter_script_output(
    recipe: Mapping[str, Any], environment: Mapping[str, str], step_folder: Path
) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Have the engine run its shell through the filter of scripts' output, by a ``bash`` in a folder of the PATH.

    The engine prefers a bash of the build environment; the script then starts itself again, through the filter. Return
    the recipe, whose script no longer has the folder on its PATH, where a configure script may find a shell that a
    package then names, and the engine's environment. What the script does for that is in a file, since packages contain
    the recipe, and no path of this machine.
    """
    path = environment.get("PATH", os.defpath)
    shell = shutil.which("bash", path=path)
    if shell is None:
        return dict(recipe), environment
    folder = step_folder / _SHELL
    words = shlex.join((sys.executable, "-I", "-S", script_output_filter.__file__))
    files.write_text(folder / "bash", f'#!/bin/sh\n{_FILTERED}=1 exec {words} {shlex.quote(shell)} "$@"\n')
    (folder / "bash").chmod(0o755)
    lines = (
        f'[ -n "${{{_FILTERED}-}}" ] || {_FILTERED}=1 exec {words} "$BASH" -e "${{BASH_SOURCE[1]}}"',
        f"kiln_own={shlex.quote(f'{folder}{os.pathsep}')}",
        'PATH="${PATH//"$kiln_own"/}"',
        f"unset {_FILTERED} kiln_own",
    )
    files.write_text(folder / "enter", "".join(f"{line}\n" for line in lines))
    script = recipe["build"]["script"]
    enter = lines_without_shell_trace((f'. "$SRC_DIR/{UP_TO_STEP}/{_SHELL}/enter"',))
    build = {**recipe["build"], "script": {**script, "content": [*enter, *script["content"]]}}
    return {**recipe, "build": build}, {**environment, "PATH": f"{folder}{os.pathsep}{path}"}


def channel_hosts(channels: Iterable[str]) -> str:
    """Return the hosts of channels, without credentials; a channel without an address is named as it is."""
    names = (urlsplit(channel).hostname or channel for channel in channels if not channel.startswith("file:"))
    return ", ".join(dict.fromkeys(names)) or "a source"


def build_step_error(step: BuildStep | CompileStep, reason: str, tail: str) -> KilnError:
    """Return the error of a failed step, from the engine's own messages."""
    name = step.output.name if isinstance(step, BuildStep) else _NAMES.get(step.title, step.title)
    kind = rattler_build_failure_kinds.classify_failure(reason, tail)
    hint = kind.hint or f"what the script left is in {step.folder}"
    message = rattler_build_failure_kinds.readable_engine_message(reason, tail)
    if kind is rattler_build_failure_kinds.LICENSES and isinstance(step, BuildStep):
        message = license_files_not_found.missing_licenses_message(step) or message
    return kind.error(
        f"{name} could not be built: {message}", why=f"the log ends with\n{program_output_with_margin(tail)}", hint=hint
    )
