"""Run rattler-build on a planned step in a separate process, with its secrets, and return its answer."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kiln.base import files, http, masking, process
from kiln.base.errors import DownloadFailed, KilnError, program_output_with_margin
from kiln.base.serialization import to_json
from kiln.base.system.machine import PACKAGE_ROOT
from kiln.build.engine import failures, output_filter
from kiln.build.engine.failures import (
    ENGINE_FOLDER,
    SPECIAL_TEXT,
    UP_TO_STEP,
    build_prefixes,
    find_special_files,
    host_prefixes,
    message_naming_files,
)
from kiln.build.engine.scripts import export_lines, lines_without_shell_trace
from kiln.build.engine.source_plan import SourceMirrors, recipe_with_mirror_urls
from kiln.build.engine.sources import SourceFetcher
from kiln.build.steps import BuildStep, CompileStep, FetchedSource
from kiln.compat import causes
from kiln.conda import package_cache
from kiln.conda.rattler import limits
from kiln.recipe.rendered import COMPILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


HANDED_OVER = "KILN_HANDED_OVER"
# Lines before a script's own, untraced. The engine's own copy of the script's output is not masked, so it is removed.
UNPACK = lines_without_shell_trace((f'eval "${{{HANDED_OVER}-}}"; unset {HANDED_OVER}; rm -f conda_build.log',))


@contextlib.contextmanager
def temporary_credentials_file(step: BuildStep | CompileStep) -> Iterator[dict[str, str]]:
    """Write the credentials of a step's channels into a file of rattler's; yields the variable that names it."""
    entries = http.rattler_auth_file_content(step.channels)
    if not entries:
        yield {}
        return
    file = step.folder / "auth.json"
    files.write_text(file, json.dumps(entries), mode=0o600)
    try:
        yield {"RATTLER_AUTH_FILE": str(file)}
    finally:
        files.remove(file)


def recipe_with_merged_secrets(step: BuildStep | CompileStep) -> dict[str, Any]:
    """Return the recipe for the engine: the plan's, whose script takes all secrets from one variable.

    The engine masks each value of ``secrets`` separately, even a single letter, and so splits longer secrets into
    pieces that cannot be found any more. In one variable with all of them, it masks nothing that matters.
    """
    names = secret_names_of_step(step)
    if not names:
        return dict(step.recipe)
    build = step.recipe["build"]
    script = {**build["script"], "secrets": [HANDED_OVER], "content": [*UNPACK, *build["script"]["content"]]}
    return {**step.recipe, "build": {**build, "script": script}}


def secret_names_of_step(step: BuildStep | CompileStep) -> tuple[str, ...]:
    """Return the names of the secret variables of a step's script; its ``PATH`` is the build's own."""
    names = step.recipe.get("build", {}).get("script", {}).get("secrets", ())
    more = step.secrets if isinstance(step, CompileStep) else ()
    return tuple(name for name in dict.fromkeys((*names, *more)) if name != "PATH")


def engine_environment(names: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the engine's environment: all secrets in one variable, as shell lines, and none under its own name."""
    values = {name: environment[name] for name in names if name in environment}
    hidden = {name for name in values if not masking.is_public_variable(name)}
    rest = {name: value for name, value in environment.items() if name not in hidden}
    return {**rest, HANDED_OVER: "\n".join(export_lines(values))} if values else rest


def source_fetch_environment(environment: Mapping[str, str], secrets: Iterable[str]) -> dict[str, str]:
    """Return the environment of programs that fetch sources: without the ``secrets`` of scripts, and other secrets."""
    hidden = {name for name in secrets if not masking.is_public_variable(name)}
    return {
        name: value
        for name, value in environment.items()
        if name not in hidden and not masking.is_secret_variable(name)
    }


DIRECT = SourceMirrors()
_NAMES = {COMPILE: "the recipe's own build step"}
_TAIL = 4000  # lines of the output in which the cause of a failure is looked for
_SHELL = "shell"  # the folder, in a step's, of the shell that the engine runs
_FILTERED = "KILN_FILTERED"  # a variable of a script whose output the filter reads


def build_package(
    step: BuildStep | CompileStep,
    *,
    environment: Mapping[str, str],
    on_line: Callable[[str], None] | None = None,
    origins: SourceMirrors = DIRECT,
) -> Path:
    """Make one package in a separate process and return its path, inside the step's folder."""
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
    run: Callable[[tuple[FetchedSource, ...]], tuple[Mapping[str, str], process.ProcessResult]],
) -> Mapping[str, str]:
    """Run the engine's process for sources that kiln fetches, and return its answer.

    An archive of another kind than its name says, which the engine cannot unpack, is unpacked by kiln in a second run.
    """
    result, ended = run(step.fetched)
    if step.archives and failures.NOT_UNPACKED in result.get("error", ""):
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
) -> tuple[Mapping[str, str], process.ProcessResult]:
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
    argv = process.Program.ENGINE.script_command(str(job))
    variables = {**engine_environment(secret_names_of_step(step), environment), **step.environment}
    idle = limits.current_limits().stall
    with temporary_credentials_file(step) as access:
        env = {**variables, **access}
        try:
            result_of_process = process.run(
                argv, env=env, cwd=PACKAGE_ROOT, idle=idle, on_line=on_line, tail_lines=_TAIL
            )
        finally:
            _discard_damaged_packages(step, environment, on_line)
    files.remove(sources.folder)  # the work directory has copies
    if result_of_process.idle:
        waited_for = find_special_files(host_prefixes(step.folder))
        if waited_for:
            raise build_step_error(step, message_naming_files(SPECIAL_TEXT, waited_for), result_of_process.tail)
        raise DownloadFailed(
            f"{channel_hosts(step.channels)} has sent nothing for {idle} s",
            why="the engine waited for it without doing anything else",
            hint=f"see that the server answers, or wait longer: {limits.VARIABLE}='stall={2 * idle}'",
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
    words = shlex.join((sys.executable, "-I", "-S", output_filter.__file__))
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
    end = "\n".join(tail.splitlines()[-process.TAIL_LINES :])
    kind = failures.classify_failure(reason, end)
    hint = kind.hint or f"what the script left is in {step.folder}"
    message, error = failures.readable_engine_message(reason, end), kind.error
    if kind is failures.LICENSES and isinstance(step, BuildStep):
        message = failures.missing_licenses_message(step) or message
    output = failures.output_of_script(tail)
    if kind is failures.OTHER and failures.SCRIPT_FAILED not in reason:  # the engine's own message is the last line
        output = f"{output}\n{message}"
    cause = causes.cause_of_failed_build(output) if kind in (failures.OTHER, failures.DISK) else None
    if cause is not None:
        message, hint = cause.headline, cause.cure
        error = error if isinstance(step, CompileStep) else cause.error  # the watch of a compile knows more
    lines = () if kind in failures.WITHOUT_LOG else causes.telling_lines(output)
    shown = program_output_with_margin("\n".join(lines))
    head = "from there on the log has" if cause else "the log ends with"
    why = f"{head}\n{shown}" if shown else failures.explanation(kind, reason, tail, step)
    return error(f"{name} could not be built: {message}", why=why, hint=hint)
