"""Plan a run over the matrix, or refuse it, before anything is built."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln.base import files, limits
from kiln.base.system.machine import MachineResources
from kiln.base.text import duration
from kiln.build.executor import environment
from kiln.build.job import job
from kiln.build.job.job import HOST, ConfigJob, RunOptions, require_known_step
from kiln.container import engine as container_engine
from kiln.feedstock import config_file, job_settings, rerender, settings
from kiln.feedstock.sizes import config_sizes
from kiln.feedstock.workflow_settings import OWN, stated_hours
from kiln.recipe import render
from kiln.recipe.feedstock import require_usable_path
from kiln.recipe.rendered import OWN_ENGINE
from kiln.recipe.variants.files import compile_group
from kiln.run import checks, images, recipe_checks, simulation
from kiln.run.checks import LEAST_DISK, estimated_disk_use, least_disk_of_config, require_memory_of_earlier_builds
from kiln.state.results import ConfigRun, ConfigState
from kiln.state.store import cache
from kiln.state.store.compile_cache import compile_cache_name
from kiln.state.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from kiln.build.job.job import HostMachine
    from kiln.build.rehearsal.inputs import RehearsalInputs
    from kiln.container.engine import Engine
    from kiln.recipe.feedstock import BuildConfig, Feedstock
    from kiln.recipe.rendered import RenderedConfig
    from kiln.run.images import BuildLocation
    from kiln.state.ledger.ledger import Ledger
    from kiln.state.store.cache import InputHashes


def require_memory_and_disk(
    configs: tuple[str, ...], run_inputs: RunInputs, *, ledger: Ledger, layout: ArtifactLayout
) -> int:
    """Require enough memory and disk for these configs; return the bytes of disk that the run takes.

    Those without earlier builds are estimated by the first config of the run.
    Compile caches that the run does not use are removed when the disk is full.
    """
    options = run_inputs.options
    peaks = ledger.last_build_peak_memory_by_config(rehearsal=options.build.rehearsal)
    require_memory_of_earlier_builds(
        {config: peaks[config] for config in configs if config in peaks}, run_inputs.share, jobs=options.jobs
    )
    if options.build.rehearsal:
        return _require_rehearsal_disk(
            layout, {config: run_inputs.rehearsals[config] for config in configs}, options.jobs
        )
    least = LEAST_DISK
    if options.build.engine == OWN_ENGINE and run_inputs.engine is None:
        least = least_disk_of_config(run_inputs.feedstock, run_inputs.first)
    disk = estimated_disk_use(ledger.last_build_disk_use(), configs, jobs=options.jobs, least=least)
    if options.fetch:
        layout.compile_caches.remove_caches_to_free_space(disk, keep=set(run_inputs.caches.values()))
    files.require_disk_space(layout.root, disk, for_what=f"building {options.jobs} at a time")
    return disk


def _require_rehearsal_disk(layout: ArtifactLayout, rehearsals: Mapping[str, RehearsalInputs], jobs: int) -> int:
    # A build needs neither, and they import much.
    from kiln.build.rehearsal.inputs import missing_wheels_size, rehearsal_disk_bytes
    from kiln.state.store.layout import RehearsalLayout

    missing_bytes = missing_wheels_size(rehearsals, RehearsalLayout(config=layout.work_folder(min(rehearsals))).wheels)
    upstream = max(
        0 if rehearsal.wheels.upstream is None else rehearsal.wheels.upstream.size for rehearsal in rehearsals.values()
    )
    jobs = min(jobs, len(rehearsals))
    disk = rehearsal_disk_bytes(missing_bytes, upstream, jobs=jobs) + (0 if upstream else jobs * LEAST_DISK)
    fetched = f" with {files.human_readable_size(missing_bytes)} to fetch" if missing_bytes else ""
    files.require_disk_space(layout.root, disk, for_what=f"rehearsing {', '.join(rehearsals)}{fetched}")
    return disk


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """The inputs of a run's plan: its configs, with the location, inputs and compile cache of each, and its share.

    ``first`` is the rendering of the first config, ``rehearsals`` is empty for a build.
    """

    feedstock: Feedstock
    options: RunOptions
    machine: HostMachine
    configs: tuple[BuildConfig, ...]
    first: RenderedConfig
    engine: Engine | None
    places: Mapping[str, BuildLocation]
    rehearsals: Mapping[str, RehearsalInputs]
    inputs: Mapping[str, InputHashes]
    caches: Mapping[str, str]
    values_digest: str
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
    """Look up the inputs of a run's plan; ``on_line`` gets the progress of images that are fetched."""
    share = checks.divide_resources_among_jobs(resources, jobs=options.jobs, cores=options.cores, memory=options.memory)
    configs = config_file.read_configs(feedstock, options.configs)
    rehearsal = options.build.rehearsal
    checks.require_buildable_platforms(feedstock, configs, rehearsal=rehearsal, containers=options.container != HOST)
    notes_on_recipe, first = limits.run_bounded(lambda: check_recipe(feedstock, configs, options))
    choice = images.choose_container_engine(options)
    # The engine's scripts do not quote their folders, and the option for a mount separates its parts by commas.
    require_usable_path(feedstock.root, " " if choice.engine is None else ",")
    if choice.engine is None:
        checks.require_buildable_platforms(feedstock, configs, rehearsal=rehearsal, containers=False)
    image_platforms = checks.image_platforms(feedstock, configs)
    on_image_line = on_line and (lambda line: on_line(f"image: {line}"))
    places, notes = images.choose_build_locations(
        [(config, image_platforms[config.name]) for config in configs], options, choice.engine, on_image_line
    )
    places, notes_on_packages = images.add_packages_to_images(feedstock, places, options, choice.engine, on_image_line)
    rehearsals, notes_on_rehearsals = (
        _look_up_rehearsal_inputs(feedstock, configs, options, machine, on_line) if rehearsal else ({}, ())
    )
    layout = ArtifactLayout.for_feedstock(feedstock, rehearsal=rehearsal)
    values = cache.values_digest(layout, options.script_values)
    compilers = {place: place.compilers_digest(machine) for place in set(places.values())}
    return RunInputs(
        feedstock=feedstock,
        options=options,
        machine=machine,
        configs=configs,
        first=first,
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
            values=values,
        ),
        values_digest=values,
        caches={config.name: compile_cache_name(config, where=compilers[places[config.name]]) for config in configs},
        share=share,
        notes=(*notes_on_recipe, *choice.notes, *notes, *notes_on_rehearsals, *notes_on_packages),
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
    from kiln.build.rehearsal import inputs as rehearsal_inputs
    from kiln.build.rehearsal.inputs import RehearsalPlanner
    from kiln.state.store.layout import RehearsalLayout

    on_host = options.container in {None, HOST}
    pythons = rehearsal_inputs.RehearsalPythons(
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
    return rehearsal_inputs.require_rehearsal_inputs(configs, pythons, on_host=on_host, plan_of=planner.plan)


def check_recipe(
    feedstock: Feedstock, configs: tuple[BuildConfig, ...], options: RunOptions
) -> tuple[tuple[str, ...], RenderedConfig]:
    """Refuse what cannot be built before anything is; return notes, and the rendering of the first config.

    The notes are on a stale matrix, on variables that are not set, and on settings without effect.
    """
    own_engine = options.build.engine == OWN_ENGINE
    for check in recipe_checks.checks_of_files(
        feedstock, configs, own_engine=own_engine, rehearsal=options.build.rehearsal
    ):
        check()
    renderings = [render.render(feedstock, config) for config in configs]
    if options.build.from_step is not None:
        require_known_step(renderings, options.build.from_step, engine=options.build.engine)
    for check in recipe_checks.checks_of_renderings(feedstock, renderings, own_engine=own_engine):
        check()
    checks.refuse_ineffective_remote_options(feedstock, renderings, options)
    notes = list(dict.fromkeys(str(warning) for rendered in renderings for warning in rendered.warnings))
    notes += map(str, recipe_checks.unset_variable_warnings(feedstock, renderings, options.client))
    if changes := rerender.matrix_difference(feedstock):
        notes.append(f".ci_support is not up to date with the recipe and the variant files ({changes}): kiln rerender")
    notes += settings.no_effect_notes(feedstock.conda_forge_yml)
    if own_engine:
        notes += (
            f"conda-forge.yml: {name} has an effect with --engine conda-build only"
            for name in job_settings.conda_build_only_settings(feedstock.conda_forge_yml)
        )
    return tuple(notes), renderings[0]


def _input_hashes_of_configs(
    feedstock: Feedstock,
    configs: Collection[BuildConfig],
    places: Mapping[str, BuildLocation],
    rehearsals: Mapping[str, RehearsalInputs],
    *,
    engine: str,
    in_container: bool,
    values: str = "",
) -> dict[str, InputHashes]:
    """Return the hashes of configs; those of cross-compiled ones depend on whether this machine runs their tests.

    Other engines skip such tests.
    """
    emulated: frozenset[str] = frozenset()
    if engine == OWN_ENGINE and not rehearsals:
        emulated = checks.configs_with_emulated_tests(feedstock, configs, in_container=in_container)
    recipe = cache.recipe_digest(feedstock)
    return {
        config: cache.input_hashes(
            feedstock,
            config,
            recipe=recipe,
            engine=engine,
            where=place.digest,
            rehearsed_with=rehearsals[config].inputs_digest if config in rehearsals else None,
            emulated=config in emulated,
            values=values,
        )
        for config, place in places.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run that may start: all configs in the order of builds, and the jobs of those to build.

    ``notes`` are sentences for the user, ``compile_secrets`` variables for the compile steps alone, ``compiles`` when
    there are compile steps, whose results the configs of a group share in a cache; ``plan_command`` is the recipe's
    command that shows them for the config ``CONFIG``. ``rehearsals`` are the origins of what each config is rehearsed
    with.
    """

    options: RunOptions
    layout: ArtifactLayout
    cores: int
    container: str
    image: str | None
    configs: tuple[ConfigRun, ...]
    jobs_of: Mapping[str, ConfigJob]
    seconds: float | None
    disk: int
    share: MachineResources
    notes: tuple[str, ...]
    compile_secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    compiles: bool = False
    plan_command: str = ""
    rehearsals: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    @property
    def waiting(self) -> tuple[ConfigRun, ...]:
        """The configs to build."""
        return tuple(config for config in self.configs if config.state is ConfigState.WAITING)

    @property
    def process_environment(self) -> dict[str, str]:
        """The environment of the process of each config, with its secrets."""
        return {**self.options.client, **self.compile_secrets}


def make_run_plan(
    feedstock: Feedstock,
    options: RunOptions,
    *,
    machine: HostMachine,
    ledger: Ledger,
    layout: ArtifactLayout,
    on_line: Callable[[str], None] | None = None,
) -> RunPlan:
    """Plan which configs to build, where and with which inputs; find the finished ones.

    ``on_line`` gets the progress of images that are fetched.
    """
    resources = MachineResources.of_this_machine()
    run_inputs = look_up_run_inputs(feedstock, options, machine, resources, on_line)
    inputs = {} if options.build.rebuilds_finished else run_inputs.inputs
    finished = cache.packages_of_finished_configs(ledger, layout, inputs)
    groups = {config.name: compile_group(config) for config in run_inputs.configs}
    of_finished = {name: groups.pop(name) for name in finished}
    waiting = simulation.order_configs_for_build(
        groups,
        ledger.last_build_seconds(rehearsal=options.build.rehearsal),
        finished=of_finished,
        shared=not options.build.rehearsal,
    )
    compiles = bool(waiting and not options.build.rehearsal and run_inputs.first.stagings)
    disk = 0
    if waiting:
        disk = require_memory_and_disk(
            tuple(config.config for config in waiting), run_inputs, ledger=ledger, layout=layout
        )
    to_build = [config for config in run_inputs.configs if config.name in groups]
    engine_data = None
    if run_inputs.engine is not None and to_build and options.fetch:
        # The engine with the options that it needs here, which are tried with one of the images.
        place = run_inputs.places[to_build[0].name]
        engine = container_engine.workable_engine(run_inputs.engine, str(place.image), platform=place.platform)
        engine_data = engine.as_json()
    return RunPlan(
        options=options,
        layout=layout,
        cores=resources.cores,
        container=run_inputs.container_engine_name,
        image=images.image_names_for_report(run_inputs.places),
        configs=(
            *(
                ConfigRun(
                    config=config.name,
                    state=ConfigState.CACHED,
                    group=compile_group(config),
                    reason=cache.FOUND,
                    packages=finished[config.name],
                )
                for config in run_inputs.configs
                if config.name in finished
            ),
            *waiting,
        ),
        jobs_of={config.name: _config_job(run_inputs, config, engine_data) for config in to_build},
        seconds=simulation.total_build_seconds(waiting, options.jobs, shared=compiles),
        disk=disk,
        share=run_inputs.share,
        notes=run_inputs.notes,
        compiles=compiles,
        plan_command=run_inputs.first.plan_command if compiles else "",
        rehearsals={name: rehearsal.wheels.summary for name, rehearsal in run_inputs.rehearsals.items()},
        compile_secrets=job.compile_secrets(options),
    )


def _config_job(run_inputs: RunInputs, config: BuildConfig, engine_data: dict[str, Any] | None) -> ConfigJob:
    options, share, inputs = run_inputs.options, run_inputs.share, run_inputs.inputs[config.name]
    rehearsal = run_inputs.rehearsals.get(config.name)
    return ConfigJob(
        root=str(run_inputs.feedstock.root),
        config=config.name,
        key=inputs.key,
        shared=inputs.shared,
        sources=cache.recipe_and_config_digest(run_inputs.feedstock, config.name),
        options=options.build,
        container=run_inputs.container_engine_name,
        engine_data=engine_data,
        image=run_inputs.places[config.name].image,
        image_platform=run_inputs.places[config.name].platform,
        cores=share.cores,
        memory=job.memory_limit(options.memory, share.memory, run_inputs.engine),
        variables=environment.conda_forge_variables(
            run_inputs.feedstock, config.name, caller=options.caller_variables, cores=share.cores, uid=os.getuid()
        ),
        environment=dict(run_inputs.machine.environment),
        log="",
        group=compile_group(config),
        cache_key=run_inputs.caches[config.name],
        compile_memory=share.memory,
        values_digest=run_inputs.values_digest,
        **({} if rehearsal is None else rehearsal.job_fields()),
    )


def stated_time(feedstock: Feedstock, plan: RunPlan) -> str:
    """Return in words how long the feedstock states that configs take of which no time is known, or nothing."""
    if plan.seconds is not None or plan.options.build.rehearsal:
        return ""
    own = settings.TypedSettings.read(feedstock.conda_forge_yml).get_nested(OWN)
    waiting = config_file.read_configs(feedstock, [config.config for config in plan.waiting])
    sizes = config_sizes(feedstock, waiting)
    stated = [stated_hours(own, compile_group(config), sizes[config.name]) for config in waiting]
    hours, cores = max(stated, key=math.prod, default=(0, 0))
    return f"; the feedstock states up to {hours:g} h each on {cores:g} cores" if hours else ""


def plan_as_text(plan: RunPlan, stated: str = "") -> str:
    """Return a plan as text: the order of builds, then the resources; ``stated`` follows a time that is unknown."""
    lines = []
    for config in plan.configs:
        took = "" if config.estimate is None else f" {duration(config.estimate)}"
        action = f"build{took}{f' first of {config.group}' if config.cold and plan.compiles else ''}"
        lines.append(f"{'done   ' if config.state is ConfigState.CACHED else action}  {config.config}")
    if plan.waiting:
        time = f"unknown, no similar config was built here yet{stated}"
        if plan.seconds is not None:
            time = duration(plan.seconds)
        where = "on the host" if plan.container == HOST else f"in {plan.container}"
        share = f"{plan.share.cores} cores and {files.human_readable_size(plan.share.memory)} of memory"
        unknown = not plan.options.build.rehearsal and any(config.estimate is None for config in plan.waiting)
        disk = f"{'at least ' if unknown else ''}{files.human_readable_size(plan.disk)}"
        lines += [
            "",
            f"{len(plan.waiting)} to build, {plan.options.jobs} at a time, {where}: each has {share}",
            f"temporary disk: {disk}{', no similar config was built here yet' if unknown else ''}",
            f"time: {time}",
        ]
    if plan.plan_command:
        # Not its output: a plan runs no program of a recipe, which on the host would have all rights of the user.
        names = [config.config for config in plan.waiting]
        command = plan.plan_command.replace("CONFIG", names[0]) if len(names) == 1 else plan.plan_command
        lines += ["", "the compile's commands, by a program of the recipe that a dry run does not start:", command]
    # What stands in for the packages of channels; configs with the same contents share the lines.
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for config in plan.waiting:
        groups.setdefault(plan.rehearsals.get(config.config, ()), []).append(config.config)
    for summary, names in groups.items():
        if summary:
            lines += ["", f"{', '.join(names)} from:", *(f"    {title:<14}{text}" for title, text in summary)]
    return "\n".join(lines)
