"""The build stage: plan purely which packages are made and how, then let the engine make one after the other."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import command, files
from kiln.build import faults, shared
from kiln.build.origins import Origins, applied
from kiln.build.recipe import compiling, concrete, exports, given, names, script_lines
from kiln.errors import BuildFailed, excerpt
from kiln.matchspec import package_name
from kiln.model.plan import BuildStep, CompileStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kiln.errors import KilnError
    from kiln.model.rendered import Output, Rendered

__all__ = [
    "callers_variables",
    "execute",
    "in_order",
    "is_single",
    "plan",
    "plan_compile",
    "plan_outputs",
    "prepare",
    "script_lines",
    "test_sources",
]

DIRECT = Origins()
COMPILE = "kiln-compile"  # what the engine calls the step that the outputs share

HOUSE = Path(__file__).parents[2]  # the folder that holds the kiln package, for `python -m`


def in_order(outputs: Iterable[Output]) -> tuple[Output, ...]:
    """Return the outputs that are not skipped, each after the outputs that it needs.

    Raises:
        BuildFailed: when outputs need each other in a circle.
    """
    waiting = {(output.name, output.build_string): output for output in outputs if not output.skip}
    ordered: list[Output] = []
    while waiting:
        names = {name for name, _ in waiting}
        free = {key: each for key, each in waiting.items() if not _needed_outputs(each) & names - {each.name}}
        if not free:
            raise BuildFailed("the outputs need each other in a circle", why=" -> ".join(name for name, _ in waiting))
        ordered += free.values()
        waiting = {key: each for key, each in waiting.items() if key not in free}
    return tuple(ordered)


def _needed_outputs(output: Output) -> set[str]:
    needs = output.requirements
    return {package_name(spec) for spec in (*needs.build, *needs.host, *needs.run)}


def plan(
    rendered: Rendered,
    *,
    recipe_folder: Path,
    folder: Path,
    channels: tuple[str, ...],
    wheel: Path,
) -> tuple[BuildStep, ...]:
    """Plan the packages of a rehearsal, in the order in which they must be made.

    ``wheel``, upstream's, lies in ``$SRC_DIR/dist`` when an output's script runs: it is what the compile step would
    have ended in. The build section is left out, since nothing is compiled, binaries are taken as upstream made them,
    and the packages say in their metadata what they are.
    """
    return tuple(
        BuildStep(
            output=output,
            recipe=concrete(
                output,
                recipe_folder=recipe_folder,
                environment=script_environment(output, rendered, recipe_folder),
                prologue=("mkdir -p dist", f"ln -s {shlex.quote(str(wheel))} dist/"),
                as_it_is=True,
                without={"build"},
                extra={"rehearsal": True},
            ),
            folder=folder / output.name,
            channels=channels,
            environment=cuda_override(rendered),
            index=index_of(output),
        )
        for output in in_order(rendered.outputs)
    )


def plan_compile(
    rendered: Rendered,
    *,
    recipe_folder: Path,
    folder: Path,
    channels: tuple[str, ...],
    settings: Path,
    secrets: tuple[str, ...] = (),
) -> CompileStep | None:
    """Plan the build step that the outputs share, in ``folder``; None for a recipe that is a single package.

    ``settings`` is a file of shell lines that the script reads first: what changes from run to run, and not the result.
    ``secrets`` are variables of the same kind that must stand in no file.
    """
    if is_single(rendered):
        return None
    environment = {
        **chosen(rendered),
        **_top_level(rendered),
        "RECIPE_DIR": str(recipe_folder),
        **given(rendered.compile_script_env),
    }
    script = (
        *exports(environment),
        f". {shlex.quote(str(settings))}",
        *shared.before_compile(folder),
        *script_lines(rendered.compile, recipe_folder),
        'cd "$SRC_DIR"',
        *shared.after_compile(folder),
    )
    recipe = compiling(
        COMPILE,
        script,
        requirements=rendered.compile_requirements,
        sources=rendered.sources,
        recipe_folder=recipe_folder,
        script_env=rendered.compile_script_env,
    )
    return CompileStep(
        recipe=recipe, folder=folder, channels=channels, environment=cuda_override(rendered), secrets=secrets
    )


def _top_level(rendered: Rendered) -> dict[str, str]:
    """Return what conda-build calls the package in the recipe's own step; the engine would say the step's own name."""
    return {
        "PKG_NAME": rendered.name,
        "PKG_VERSION": rendered.version,
        "PKG_BUILDNUM": str(rendered.build_number),
    }


def plan_outputs(
    rendered: Rendered,
    *,
    recipe_folder: Path,
    folder: Path,
    channels: tuple[str, ...],
    compiled: Path | None,
    extra: Mapping[str, str],
) -> tuple[BuildStep, ...]:
    """Plan the packages of a cell, in the order in which they must be made.

    ``compiled`` is the folder of the compile step, or None when there is none: a single package then has the sources
    itself. ``extra`` goes into each package's metadata.
    """

    def step(output: Output) -> BuildStep:
        recipe = concrete(
            output,
            recipe_folder=recipe_folder,
            environment=script_environment(output, rendered, recipe_folder),
            prologue=shared.before_output(compiled, output, rendered.name) if compiled else (),
            epilogue=_epilogue(output, folder, shared_work=compiled is not None),
            sources=() if compiled else rendered.sources,
            extra=extra,
        )
        return BuildStep(
            output=output,
            recipe=recipe,
            folder=folder / f"{output.name}-{output.build_string}",
            channels=channels,
            environment=cuda_override(rendered),
            index=index_of(output),
        )

    return tuple(step(output) for output in in_order(rendered.outputs))


def _epilogue(output: Output, folder: Path, *, shared_work: bool) -> tuple[str, ...]:
    """Return what runs after an output's script, in the work directory."""
    wanted = output.tests.source_files
    kept = shared.kept_sources(wanted, test_sources(folder, output)) if wanted else ()
    licences = shared.after_output(_licences(output)) if shared_work else ()
    return ('cd "$SRC_DIR"', *kept, *licences) if kept or shared_work else ()


def test_sources(folder: Path, output: Output) -> Path:
    """Return where a build in ``folder`` keeps what an output's tests want of its sources."""
    return folder / "test-sources" / f"{output.name}-{output.build_string}"


def is_single(rendered: Rendered) -> bool:
    """Whether a recipe is a single package, and so has no build step beside that package's own."""
    nothing = not rendered.compile.lines and rendered.compile.file is None
    return nothing and (len(rendered.outputs) < 2 or not rendered.sources)


def index_of(output: Output) -> dict[str, str]:
    """Return what index.json says beyond what the engine writes."""
    return {"track_features": " ".join(output.track_features)} if output.track_features else {}


def _licences(output: Output) -> tuple[str, ...]:
    given = output.about.get("license_file", ())
    return (given,) if isinstance(given, str) else tuple(given)


def callers_variables(rendered: Rendered) -> tuple[str, ...]:
    """Return the names of the caller's variables that scripts of a cell get, from ``build/script_env``."""
    outputs = (name for output in rendered.outputs for name in output.script_env)
    return names((*rendered.compile_script_env, *outputs))


def cuda_override(rendered: Rendered) -> dict[str, str]:
    """Return what lets a CUDA cell be solved on a machine without a GPU, as conda-forge's own builds do."""
    version = rendered.cell.variant.get("cuda_compiler_version", ("None",))[0]
    return {} if version == "None" else {"CONDA_OVERRIDE_CUDA": version}


def script_environment(output: Output, rendered: Rendered, recipe_folder: Path) -> dict[str, str]:
    """Return the variables that conda-build sets for a script and rattler-build does not.

    They are every variant key, so far as its name can be a variable's, and where the recipe lies.
    """
    named = _named({**output.variant, **output.used})
    return {**chosen(rendered), **named, "RECIPE_DIR": str(recipe_folder)}


def chosen(rendered: Rendered) -> dict[str, str]:
    """Return the cell's variant as variables, the first value of each key."""
    return _named({key: values[0] for key, values in rendered.cell.variant.items() if values})


def _named(values: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if key.isidentifier() and not key.startswith("__")}


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
