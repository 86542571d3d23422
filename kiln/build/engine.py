"""rattler-build at work on a planned step, in a process of its own: its answer, or what it failed of."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import command, files
from kiln.build import faults
from kiln.build.origins import Origins, applied
from kiln.errors import excerpt
from kiln.model.plan import BuildStep, CompileStep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kiln.errors import KilnError

DIRECT = Origins()
HOUSE = Path(__file__).parents[2]  # the folder that holds the kiln package, for `python -m`


def execute(
    step: BuildStep | CompileStep,
    *,
    environment: Mapping[str, str],
    log: Path | None,
    on_line: Callable[[str], None] | None = None,
    origins: Origins = DIRECT,
) -> Path:
    """Make one package in a process of its own and return where it lies, inside the step's folder.

    Raises:
        BuildFailed: with the end of the engine's log.
        HashMismatch: when no archive of the sources has the recipe's hash; nothing has run then.
        DownloadFailed: when what failed was the way to a channel or a source.
        DiskFull: when there was no room left.
    """
    of_kind = {"index": step.index} if isinstance(step, BuildStep) else {"keep": True}
    told = _engine(step, "package", of_kind, environment=environment, log=log, on_line=on_line, origins=origins)
    return Path(told["package"])


def prepare(
    step: BuildStep | CompileStep,
    *,
    environment: Mapping[str, str],
    on_line: Callable[[str], None] | None = None,
    origins: Origins = DIRECT,
) -> Mapping[str, str]:
    """Make everything that a step's script needs, without running it; returns the places, by their names.

    They are ``work``, the script's folder, ``script`` itself, ``environment``, what it sources, and the prefixes
    ``host`` and ``build``. Raises what `execute` does.
    """
    own = {"debug": True}
    return _engine(step, "script", own, environment=environment, log=None, on_line=on_line, origins=origins)


def _engine(
    step: BuildStep | CompileStep,
    wanted: str,
    of_kind: Mapping[str, Any],
    *,
    environment: Mapping[str, str],
    log: Path | None,
    on_line: Callable[[str], None] | None,
    origins: Origins,
) -> Mapping[str, str]:
    """Run the engine's process in the step's folder, and return its answer, which holds what is ``wanted``."""
    files.remove(step.folder)
    step.folder.mkdir(parents=True)
    job, answer = step.folder / "job.json", step.folder / "result.json"
    places = {"folder": str(step.folder), "result": str(answer), "parent": os.getpid()}
    fields = {"recipe": applied(recipe_of(step), origins), "channels": step.channels, **of_kind}
    files.write_text(job, json.dumps({**places, **fields}, indent=1))
    argv = (sys.executable, "-m", "kiln.build.worker", str(job))
    ended = command.run(argv, env={**environment, **step.environment}, cwd=HOUSE, log=log, on_line=on_line)
    result: dict[str, str] = json.loads(answer.read_text()) if answer.exists() else {}
    if wanted not in result:
        raise failure(step, result.get("error", f"the engine ended with exit code {ended.exit_code}"), ended.tail, log)
    return result


def recipe_of(step: BuildStep | CompileStep) -> dict[str, Any]:
    """Return the recipe that the engine gets: the plan's, with the names of what is secret in it."""
    if isinstance(step, BuildStep) or not step.secrets:
        return dict(step.recipe)
    build = step.recipe["build"]
    secrets = [*build["script"].get("secrets", ()), *step.secrets]
    return {**step.recipe, "build": {**build, "script": {**build["script"], "secrets": secrets}}}


def failure(step: BuildStep | CompileStep, reason: str, tail: str, log: Path | None) -> KilnError:
    """Return what a failed step is told as, by the engine's own words."""
    what = step.output.name if isinstance(step, BuildStep) else "the recipe's own build step"
    kind = faults.kind(reason, tail)
    hint = kind.hint or f"what the script left is in {step.folder}" + (f"; read {log}" if log else "")
    said = faults.in_words(reason, tail)
    return kind.error(f"{what} could not be built: {said}", why=f"the log ends with\n{excerpt(tail)}", hint=hint)
