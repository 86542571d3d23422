"""Plan the packages of a config: which ones, in which order and how; nothing is run."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kiln.base.errors import BuildFailed
from kiln.build.engine import dependencies, failures, info_files, scripts, source_plan
from kiln.build.engine.metadata import about_and_hash_edits, recipe_and_test_edits
from kiln.build.engine.recipe import (
    compile_step_recipe,
    cuda_override,
    exportable_variables,
    literal_script_variables,
    missing_index_json_entries,
    output_recipe,
    script_environment,
    variant_variables,
)
from kiln.build.engine.scripts import export_lines, lines_without_shell_trace, script_run_lines
from kiln.build.steps import BuildStep, CompileStep, StagedFiles
from kiln.conda.specs import package_name
from kiln.recipe.rendered import BuildPlatforms, PackageSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kiln.recipe.rendered import Output, OutputTest, RenderedConfig, Staging


COMPILE = "kiln-compile"  # what the engine calls a step that outputs share
_DEFAULTS = PackageSettings()
NO_PACKAGE = "unset PKG_NAME PKG_VERSION PKG_BUILDNUM PKG_BUILD_STRING PKG_HASH"


def outputs_in_build_order(outputs: Iterable[Output]) -> tuple[Output, ...]:
    """Return the outputs that are not skipped, each after the outputs that it depends on."""
    waiting = {(output.name, output.build_string): output for output in outputs if not output.skip}
    ordered: list[Output] = []
    while waiting:
        names = {name for name, _ in waiting}
        free = {key: output for key, output in waiting.items() if not _dependency_names(output) & names - {output.name}}
        if not free:
            raise BuildFailed("the outputs depend on each other", why=" -> ".join(name for name, _ in waiting))
        ordered += free.values()
        waiting = {key: output for key, output in waiting.items() if key not in free}
    return tuple(ordered)


def _dependency_names(output: Output) -> set[str]:
    needs = output.requirements
    return {package_name(spec) for spec in (*needs.build, *needs.host, *needs.run)}


def plan_rehearsal(
    rendered: RenderedConfig, *, recipe_folder: Path, folder: Path, channels: tuple[str, ...], wheel: Path
) -> tuple[BuildStep, ...]:
    """Plan the packages of a rehearsal, in the order of their dependencies.

    ``wheel``, upstream's, is in ``$SRC_DIR/dist`` when an output's script runs, where the compile step would have
    left it. The build section is omitted, since nothing is compiled, but for what its tools export; binaries are taken
    as upstream made them, and the packages' metadata marks them as a rehearsal's.
    """
    return tuple(
        BuildStep(
            output=output,
            recipe=output_recipe(
                output,
                recipe_folder=recipe_folder,
                environment=script_environment(output, rendered, recipe_folder),
                epilogue=(
                    *scripts.install_link_scripts_lines(output, recipe_folder),
                    *scripts.compile_modules_lines(output),
                    *failures.refuse_special_files_lines(folder / output.name),
                ),
                prologue=("mkdir -p dist", f"ln -s {shlex.quote(str(wheel))} dist/"),
                as_it_is=True,
                extra={"rehearsal": True},
                inherited=dependencies.run_exports_from_build_tools(output),
            ),
            folder=folder / output.name,
            channels=channels,
            environment=cuda_override(rendered),
            platforms=target_and_build_platforms(rendered),
            index=missing_index_json_entries(output),
            edits=_package_metadata_edits(output, folder, recipe_folder),
            pins=dependencies.pins_to_solve(output),
        )
        for output in outputs_in_build_order(rendered.outputs)
    )


def plan_compile(
    rendered: RenderedConfig,
    staging: Staging,
    *,
    recipe_folder: Path,
    folder: Path,
    channels: tuple[str, ...],
    settings: Path,
    secrets: tuple[str, ...] = (),
    forge: PackageSettings = _DEFAULTS,
) -> CompileStep:
    """Plan a build step that outputs share, in ``folder``.

    ``settings`` is a file of shell lines that the script reads first: what changes from run to run, and not the result.
    ``secrets`` are variables of the same kind that must not be written to a file. ``forge`` is as in `plan_outputs`.
    """
    environment = {
        **variant_variables(rendered),
        **exportable_variables(staging.variant),
        **_package_script_variables(staging),
        "RECIPE_DIR": str(recipe_folder),
        **literal_script_variables(staging.script_env),
    }
    script = (
        *export_lines(environment),
        *(() if staging.package else (NO_PACKAGE,)),
        f". {shlex.quote(str(settings))}",
        *lines_without_shell_trace(
            (
                *source_plan.symlink_sources_lines(staging.sources, recipe_folder),
                *scripts.prepare_sources_lines(staging.sources),
                *scripts.record_compile_workdir_lines(folder),
            )
        ),
        *script_run_lines(staging.script, recipe_folder),
        *lines_without_shell_trace(
            (
                'cd "$SRC_DIR"',
                *failures.refuse_special_files_lines(folder),
                *scripts.archive_installed_files_lines(folder),
            )
        ),
    )
    return CompileStep(
        title=staging.title,
        recipe=compile_step_recipe(COMPILE, staging, script, recipe_folder=recipe_folder),
        folder=folder,
        channels=channels,
        environment=cuda_override(rendered),
        platforms=target_and_build_platforms(rendered),
        settings=forge,
        secrets=secrets,
        fetched=source_plan.sources_fetched_by_kiln(staging.sources, recipe_folder),
        archives=source_plan.archives_unpacked_by_engine(staging.sources, recipe_folder),
    )


def _package_script_variables(staging: Staging) -> dict[str, str]:
    """Return conda-build's variables of the package in the recipe's own step; the engine would use the step's name."""
    if staging.package is None:
        return {}
    name, version, number = staging.package
    return {"PKG_NAME": name, "PKG_VERSION": version, "PKG_BUILDNUM": str(number)}


def plan_outputs(
    rendered: RenderedConfig,
    *,
    recipe_folder: Path,
    folder: Path,
    channels: tuple[str, ...],
    compiled: Mapping[str, StagedFiles],
    extra: Mapping[str, Any],
    forge: PackageSettings = _DEFAULTS,
) -> tuple[BuildStep, ...]:
    """Plan the packages of a config, in the order of their dependencies.

    ``compiled`` is what the build steps left that outputs share, by their names. ``extra`` goes into each package's
    metadata, ``forge`` are the settings of conda-forge.yml.
    """

    def planned_build_step(output: Output) -> BuildStep:
        output = _with_overlinking_error(output, forge)
        staging = rendered.staging_of_output(output)
        staged = None if staging is None else compiled[staging.name]
        place = folder / f"{output.name}-{output.build_string}"
        recipe = output_recipe(
            output,
            recipe_folder=recipe_folder,
            environment=script_environment(output, rendered, recipe_folder),
            prologue=(
                *source_plan.symlink_sources_lines(output.sources, recipe_folder),
                *_output_prologue_lines(output, staging, staged, rendered.name),
            ),
            epilogue=(
                *_output_epilogue_lines(output, folder, recipe_folder, staging),
                *failures.refuse_special_files_lines(place),
            ),
            sources=output.sources,
            extra=extra,
            inherited=staged.run_exports if staged and output.staged_exports else (),
        )
        return BuildStep(
            output=output,
            recipe=recipe,
            folder=place,
            channels=channels,
            environment=cuda_override(rendered),
            platforms=target_and_build_platforms(rendered),
            index=missing_index_json_entries(output),
            edits=_package_metadata_edits(output, folder, recipe_folder),
            pins=dependencies.pins_to_solve(output),
            settings=forge,
            recipe_folder=recipe_folder,
            fetched=source_plan.sources_fetched_by_kiln(output.sources, recipe_folder),
            archives=source_plan.archives_unpacked_by_engine(output.sources, recipe_folder),
            packed=tuple(pattern for test in output.tests if test.by_engine for pattern in _recipe_files_of_test(test)),
        )

    return tuple(map(planned_build_step, outputs_in_build_order(rendered.outputs)))


def _with_overlinking_error(output: Output, forge: PackageSettings) -> Output:
    """Return an output whose overlinking is an error where conda-forge.yml says so, and the recipe nothing."""
    linking = output.settings.linking
    if not forge.error_overlinking or linking.error_overlinking is not None:
        return output
    settings = replace(output.settings, linking=replace(linking, error_overlinking=True))
    return replace(output, settings=settings)


def _package_metadata_edits(output: Output, folder: Path, recipe_folder: Path) -> dict[str, Any]:
    sources, about = test_sources_folder(folder, output), about_files_folder(folder, output)
    return about_and_hash_edits(output) | recipe_and_test_edits(output, recipe_folder, sources=sources, about=about)


def _recipe_files_of_test(test: OutputTest) -> tuple[str, ...]:
    return test.files if test.script.file is None else (test.script.file, *test.files)


def _output_prologue_lines(
    output: Output, staging: Staging | None, staged: StagedFiles | None, top: str
) -> tuple[str, ...]:
    """Return the lines that run before an output's script: they bring it what a shared build step left."""
    if staging is None or staged is None:
        return scripts.prepare_sources_lines(output.sources)
    if not staging.copied:
        return scripts.enter_compile_workdir_lines(staged.folder, output, top)
    return scripts.copy_staging_workdir_lines(staged.folder, output, output.about_texts("license_file"))


def _output_epilogue_lines(
    output: Output, folder: Path, recipe_folder: Path, staging: Staging | None
) -> tuple[str, ...]:
    """Return the lines that run after an output's script, in the work directory."""
    about = about_files_folder(folder, output)
    patterns = [pattern for test in output.tests for pattern in test.source_files]
    licenses, shared_work = output.about_texts("license_file"), staging is not None and not staging.copied
    lines = (
        *(scripts.copy_test_sources_lines(patterns, test_sources_folder(folder, output)) if patterns else ()),
        *scripts.copy_recipe_licenses_to_workdir_lines(licenses, recipe_folder),
        *(scripts.copy_licenses_to_engine_lines(licenses) if shared_work else ()),
        *(() if output.settings.by_engine else info_files.copy_about_files_lines(output, recipe_folder, about)),
        *scripts.install_link_scripts_lines(output, recipe_folder),
        *scripts.direct_url_removal_script(output),
        *scripts.remove_excluded_files_lines(output),
        *scripts.unpack_eggs_lines(output),
        *scripts.compile_modules_lines(output),
    )
    return ('cd "$SRC_DIR"', *lines) if lines or shared_work else ()


def test_sources_folder(folder: Path, output: Output) -> Path:
    """Return the folder, below a build's, of the source files that an output's tests use."""
    return folder / "test-sources" / f"{output.name}-{output.build_string}"


def about_files_folder(folder: Path, output: Output) -> Path:
    """Return the folder, below a build's, of the files that an output's ``about`` names."""
    return folder / "about-files" / f"{output.name}-{output.build_string}"


def test_only_files(output: Output) -> frozenset[str]:
    """Return the names of the recipe's files that only an output's tests use; they do not affect the build."""
    tests = [test for test in output.tests if not test.by_engine]  # those of the others become part of the package
    return frozenset(name for test in tests for name in (*test.files, *test.scripts.values()))


def target_and_build_platforms(rendered: RenderedConfig) -> BuildPlatforms:
    """Return the platforms of a config: those of its packages and of the machine that builds them."""
    config = rendered.config
    return BuildPlatforms(target=config.platform, build=config.build_platform or config.platform)
