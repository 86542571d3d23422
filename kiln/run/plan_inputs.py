"""Look up the inputs of a run's plan: its configs, the machine, images and engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import conda_forge_yml, expand, feedstock_folder_check, limits, render
from kiln.build import patch_check, script_variables
from kiln.errors import RecipeFault
from kiln.job.required_channels_and_network import channel_sources
from kiln.job.step_and_output_lookup import require_known_step
from kiln.model.rattler_build_settings import OWN_ENGINE
from kiln.model.source_position import Place
from kiln.run import (
    bazel_remote_executor_secrets_and_refusals,
    buildable_platforms,
    container_engine_and_image_choice,
    recipe_support,
    resource_check,
    tensorflow_and_cuda_version_check,
    yum_requirements,
)
from kiln.run.options import HOST, RunOptions
from kiln.store import build_cache
from kiln.store.compile_cache_key import compile_cache_name
from kiln.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from kiln.builder.rehearsal_config_and_inputs import RehearsalInputs
    from kiln.container.engine import Engine
    from kiln.job.host_environment_and_python import HostMachine
    from kiln.model.feedstock import Feedstock
    from kiln.model.matrix_config import BuildConfig
    from kiln.model.rendered import RenderedConfig
    from kiln.operating_system.machine_resources import MachineResources
    from kiln.run.container_engine_and_image_choice import BuildLocation
    from kiln.store.build_cache import InputHashes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """The inputs of a run's plan: its configs, with the location, inputs and compile cache of each, and its share.

    ``rehearsals`` is empty for a build.
    """

    feedstock: Feedstock
    options: RunOptions
    machine: HostMachine
    configs: tuple[BuildConfig, ...]
    engine: Engine | None
    places: Mapping[str, BuildLocation]
    rehearsals: Mapping[str, RehearsalInputs]
    inputs: Mapping[str, InputHashes]
    caches: Mapping[str, str]
    share: MachineResources
    notes: tuple[str, ...]

    @property
    def container_engine_name(self) -> str:
        """The engine's name in the report."""
        return HOST if self.engine is None else self.engine.kind.value


def look_up_run_inputs(
    feedstock: Feedstock,
    options: RunOptions,
    machine: HostMachine,
    resources: MachineResources,
    on_line: Callable[[str], None] | None,
) -> RunInputs:
    """Look up the inputs of a run's plan; ``on_line`` gets the progress of images that are fetched.

    Raises:
        KilnError: see `kiln.run.plan.make_run_plan`.
    """
    share = resource_check.divide_resources_among_jobs(
        resources, jobs=options.jobs, cores=options.cores, memory=options.memory
    )
    configs = expand.read_configs(feedstock, options.configs)
    if options.build.from_step is not None:
        require_known_step(feedstock, configs, options.build.from_step, engine=options.build.engine)
    rehearsal = options.build.rehearsal
    buildable_platforms.require_buildable_platforms(
        feedstock, configs, rehearsal=rehearsal, containers=options.container != HOST
    )
    notes_on_recipe = limits.run_bounded(lambda: _preflight_check_notes(feedstock, configs, options))
    choice = container_engine_and_image_choice.choose_container_engine(options)
    # The engine's scripts do not quote their folders, and the option for a mount separates its parts by commas.
    feedstock_folder_check.require_usable_path(feedstock.root, " " if choice.engine is None else ",")
    if choice.engine is None:
        buildable_platforms.require_buildable_platforms(feedstock, configs, rehearsal=rehearsal, containers=False)
    image_platforms = buildable_platforms.image_platforms(feedstock, configs)
    on_image_line = on_line and (lambda line: on_line(f"image: {line}"))
    places, notes = container_engine_and_image_choice.choose_build_locations(
        [(config, image_platforms[config.name]) for config in configs], options, choice.engine, on_image_line
    )
    places, notes_on_packages = yum_requirements.add_packages_to_images(
        feedstock, places, options, choice.engine, on_image_line
    )
    rehearsals, notes_on_rehearsals = (
        _look_up_rehearsal_inputs(feedstock, configs, options, machine, on_line) if rehearsal else ({}, ())
    )
    compilers = {place: place.compilers_digest(machine) for place in set(places.values())}
    return RunInputs(
        feedstock=feedstock,
        options=options,
        machine=machine,
        configs=configs,
        engine=choice.engine,
        places=places,
        rehearsals=rehearsals,
        inputs=_input_hashes_of_configs(
            feedstock,
            configs,
            places,
            rehearsals,
            engine=options.build.engine,
            in_container=choice.engine is not None,
        ),
        caches={config.name: compile_cache_name(config, where=compilers[places[config.name]]) for config in configs},
        share=share,
        notes=(
            *notes_on_recipe,
            *choice.notes,
            *notes,
            *notes_on_rehearsals,
            *notes_on_packages,
        ),
    )


def _look_up_rehearsal_inputs(
    feedstock: Feedstock,
    configs: tuple[BuildConfig, ...],
    options: RunOptions,
    machine: HostMachine,
    on_line: Callable[[str], None] | None,
) -> tuple[Mapping[str, RehearsalInputs], tuple[str, ...]]:
    """Look up the Python and the wheels of each config's rehearsal; also return notes on them."""
    # A build needs none of these, and they import much.
    from kiln.builder import rehearsal_config_and_inputs
    from kiln.builder.rehearsal_planning import RehearsalPlanner
    from kiln.store.rehearsal_layout import RehearsalLayout

    on_host = options.container in {None, HOST}
    pythons = rehearsal_config_and_inputs.RehearsalPythons(
        machine=machine,
        folder=ArtifactLayout.for_feedstock(feedstock).rehearsal_pythons,
        channel=options.python_channel,
        fetch=options.fetch,
        show=on_line or (lambda _: None),
    )
    planner = RehearsalPlanner(
        feedstock=feedstock,
        machine=machine,
        store=RehearsalLayout(
            config=ArtifactLayout.for_feedstock(feedstock, rehearsal=True).work_folder("sources")
        ).sources,
        folder=options.build.distdir,
        mirror=options.build.mirror,
        on_host=on_host,
        env={**machine.environment, **options.client},
    )
    return rehearsal_config_and_inputs.require_rehearsal_inputs(configs, pythons, on_host=on_host, plan_of=planner.plan)


def _preflight_check_notes(
    feedstock: Feedstock, configs: tuple[BuildConfig, ...], options: RunOptions
) -> tuple[str, ...]:
    """Refuse what cannot be built before anything is, and return notes on a stale matrix and ineffective settings.

    Raises:
        KilnError: see `kiln.run.plan.make_run_plan`.
    """
    if options.build.engine == OWN_ENGINE:
        expand.package_settings(feedstock.conda_forge_yml)
        if not options.build.rehearsal:
            expand.require_supported_priority(feedstock.conda_forge_yml, map(channel_sources, configs))
    else:
        expand.conda_settings(feedstock.conda_forge_yml)
    renderings = [render.render(feedstock, config) for config in configs]
    tensorflow_and_cuda_version_check.require_compatible_versions(feedstock, renderings)
    for source in (source for rendered in renderings for source in rendered.sources):
        patch_check.require_safe_patches(feedstock.recipe / patch for patch in source.patches)
    _require_supported_recipe_keys(feedstock, renderings, engine=options.build.engine)
    bazel_remote_executor_secrets_and_refusals.refuse_ineffective_remote_options(feedstock, configs, options)
    warnings = dict.fromkeys(warning for rendered in renderings for warning in rendered.warnings)
    return (
        *warnings,
        *_unset_variable_notes(renderings, options.client),
        *_stale_matrix_note(feedstock),
        *_ineffective_settings_notes(feedstock, options),
    )


def _unset_variable_notes(renderings: Iterable[RenderedConfig], given: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note on each variable of the caller that a recipe passes to its scripts, and that the caller lacks."""
    names = {name for rendered in renderings for name in script_variables.config_caller_variable_names(rendered)}
    return tuple(
        f"{name} is not set: the scripts to which the recipe gives it go without"
        for name in sorted(names - given.keys())
    )


def _stale_matrix_note(feedstock: Feedstock) -> tuple[str, ...]:
    changes = expand.matrix_difference(feedstock)
    text = f".ci_support is not up to date with the recipe and the variant files ({changes}): kiln rerender"
    return (text,) if changes else ()


def _ineffective_settings_notes(feedstock: Feedstock, options: RunOptions) -> tuple[str, ...]:
    """Return notes on settings in conda-forge.yml that do not affect this build."""
    lines = conda_forge_yml.no_effect_notes(feedstock.conda_forge_yml)
    if options.build.engine == OWN_ENGINE:
        lines += [
            f"conda-forge.yml: {name} has an effect with --engine conda-build only"
            for name in expand.conda_build_only_settings(feedstock.conda_forge_yml)
        ]
    return tuple(lines)


def _require_supported_recipe_keys(
    feedstock: Feedstock, renderings: Collection[RenderedConfig], *, engine: str
) -> None:
    """Refuse a recipe with keys or files that do not exist, or keys that the engine lacks, before anything is built."""
    render.require_supported_keys(renderings, own_engine=engine == OWN_ENGINE)
    if engine == OWN_ENGINE:
        recipe_support.require_recipe_files(feedstock, renderings)
        _refuse_overlinking_patterns(feedstock, renderings)


def _refuse_overlinking_patterns(feedstock: Feedstock, renderings: Iterable[RenderedConfig]) -> None:
    """Refuse patterns of files that may be overlinked where conda-forge.yml makes overlinking an error.

    The recipe's own ``error_overlinking`` is among the keys, and takes precedence.
    """
    if not expand.package_settings(feedstock.conda_forge_yml).error_overlinking:
        return
    for rendered in renderings:
        for output in rendered.outputs:
            linking = output.settings.linking
            if linking.overlinking_ignored and linking.error_overlinking is None and not output.skip:
                raise RecipeFault(
                    f"{output.name}: the engine rattler-build has no build/overlinking_ignore_patterns where "
                    "overlinking is an error",
                    at=Place(file=rendered.file),
                    why="conda-forge.yml has conda_build: error_overlinking: true, and the engine checks all files",
                    hint="set build/error_overlinking in the recipe, remove one of the two, or --engine conda-build",
                )


def _input_hashes_of_configs(
    feedstock: Feedstock,
    configs: Collection[BuildConfig],
    places: Mapping[str, BuildLocation],
    rehearsals: Mapping[str, RehearsalInputs],
    *,
    engine: str,
    in_container: bool,
) -> dict[str, InputHashes]:
    """Return the hashes of configs; those of cross-compiled ones depend on whether this machine runs their tests.

    Other engines skip such tests.
    """
    emulated: frozenset[str] = frozenset()
    if engine == OWN_ENGINE:
        emulated = buildable_platforms.configs_with_emulated_tests(feedstock, configs, in_container=in_container)
    recipe = build_cache.recipe_digest(feedstock)
    return {
        config: build_cache.input_hashes(
            feedstock,
            config,
            recipe=recipe,
            engine=engine,
            where=place.digest,
            rehearsed_with=rehearsals[config].inputs_digest if config in rehearsals else None,
            emulated=config in emulated,
        )
        for config, place in places.items()
    }
