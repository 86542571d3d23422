"""Secrets on their way to the engine: of channels in a file, of scripts in one variable."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from kiln import channel_url_credentials, files, masking
from kiln.model.build_and_test_steps import BuildStep, CompileStep
from kiln.recipe_script_launch_commands import export_lines, lines_without_shell_trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


HANDED_OVER = "KILN_HANDED_OVER"
# Lines before a script's own, untraced. The engine's own copy of the script's output is not masked, so it is removed.
UNPACK = lines_without_shell_trace((f'eval "${{{HANDED_OVER}-}}"; unset {HANDED_OVER}; rm -f conda_build.log',))


@contextlib.contextmanager
def temporary_credentials_file(step: BuildStep | CompileStep) -> Iterator[dict[str, str]]:
    """Write the credentials of a step's channels into a file of rattler's; yields the variable that names it."""
    entries = channel_url_credentials.rattler_auth_file_content(step.channels)
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
