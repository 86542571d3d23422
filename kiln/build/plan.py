"""Which packages of a cell are made, in which order and how, as values that nothing has been done for yet."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kiln.build import shared
from kiln.build.recipe import compiling, concrete, exports, given, names, script_lines
from kiln.errors import BuildFailed
from kiln.matchspec import package_name
from kiln.model.plan import BuildStep, CompileStep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kiln.model.rendered import Output, Rendered

COMPILE = "kiln-compile"  # what the engine calls the step that the outputs share


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


def plan_rehearsal(
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
