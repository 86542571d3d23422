"""Plan a run over the matrix, or refuse it, before anything is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln import files, render
from kiln.console.text import duration
from kiln.container import engine_workarounds
from kiln.executor import conda_forge_variables_and_paths
from kiln.job.job_descriptions import ConfigJob
from kiln.model.run import ConfigRun, ConfigState
from kiln.operating_system import users
from kiln.operating_system.machine_resources import MachineResources
from kiln.run import (
    bazel_remote_executor_secrets_and_refusals,
    container_engine_and_image_choice,
    plan_inputs,
    resource_check,
)
from kiln.run.options import HOST, RunOptions
from kiln.scheduling import local_build_order
from kiln.store import build_cache
from kiln.variants.cuda_version import compile_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kiln.job.host_environment_and_python import HostMachine
    from kiln.ledger import Ledger
    from kiln.model.feedstock import Feedstock
    from kiln.model.matrix_config import BuildConfig
    from kiln.run.plan_inputs import RunInputs
    from kiln.store.layout import ArtifactLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run that may start: all configs in the order of builds, and the jobs of those to build.

    ``notes`` are sentences for the user, ``secrets`` variables for the compile steps alone, ``compiles`` when there are
    compile steps, whose results the configs of a group share in a cache. ``rehearsals`` are the origins of what each
    config is rehearsed with.
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
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    compiles: bool = False
    rehearsals: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    @property
    def waiting(self) -> tuple[ConfigRun, ...]:
        """The configs to build."""
        return tuple(config for config in self.configs if config.state is ConfigState.WAITING)


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

    Raises:
        KilnError: UnknownConfig, UsageError and OutOfMemory when the machine has less than requested,
            IncompatibleVersions for a config that cannot work, DiskFull, DownloadFailed for an image that cannot be
            fetched, MissingTool for an engine.
    """
    resources = MachineResources.of_this_machine()
    run_inputs = plan_inputs.look_up_run_inputs(feedstock, options, machine, resources, on_line)
    inputs = {} if options.build.rebuilds_finished else run_inputs.inputs
    finished = build_cache.packages_of_finished_configs(ledger, layout, inputs)
    groups = {config.name: compile_group(config) for config in run_inputs.configs if config.name not in finished}
    waiting = local_build_order.order_configs_for_build(
        groups, ledger.last_build_seconds(rehearsal=options.build.rehearsal), shared=not options.build.rehearsal
    )
    compiles = False
    if waiting and not options.build.rehearsal:
        compiles = bool(render.render(feedstock, run_inputs.configs[0]).stagings)
    disk = 0
    if waiting:
        disk = resource_check.require_memory_and_disk(
            tuple(config.config for config in waiting), run_inputs, ledger=ledger, layout=layout
        )
    return RunPlan(
        options=options,
        layout=layout,
        cores=resources.cores,
        container=run_inputs.container_engine_name,
        image=container_engine_and_image_choice.image_names_for_report(run_inputs.places),
        configs=(
            *(
                ConfigRun(
                    config=config.name,
                    state=ConfigState.CACHED,
                    group=compile_group(config),
                    reason=build_cache.FOUND,
                    packages=finished[config.name],
                )
                for config in run_inputs.configs
                if config.name in finished
            ),
            *waiting,
        ),
        jobs_of=_job_by_config(run_inputs, [config for config in run_inputs.configs if config.name in groups]),
        seconds=local_build_order.total_build_seconds(waiting, options.jobs, shared=compiles),
        disk=disk,
        share=run_inputs.share,
        notes=run_inputs.notes,
        compiles=compiles,
        rehearsals={name: rehearsal.wheels.summary for name, rehearsal in run_inputs.rehearsals.items()},
        secrets=bazel_remote_executor_secrets_and_refusals.remote_secret_variables(options),
    )


def _job_by_config(run_inputs: RunInputs, configs: list[BuildConfig]) -> dict[str, ConfigJob]:
    """Return the jobs of configs, with the engine and the options that it needs here, tried with one of their images.

    Raises:
        ContainerFault: when it refuses for an unknown reason.
    """
    engine, engine_data = run_inputs.engine, None
    if engine is not None and configs and run_inputs.options.fetch:
        place = run_inputs.places[configs[0].name]
        engine_data = engine_workarounds.workable_engine(engine, str(place.image), platform=place.platform).as_json()
    return {config.name: _config_job(run_inputs, config, engine_data) for config in configs}


def _config_job(run_inputs: RunInputs, config: BuildConfig, engine_data: dict[str, Any] | None) -> ConfigJob:
    options, share, inputs = run_inputs.options, run_inputs.share, run_inputs.inputs[config.name]
    rehearsal = run_inputs.rehearsals.get(config.name)
    return ConfigJob(
        root=str(run_inputs.feedstock.root),
        config=config.name,
        key=inputs.key,
        shared=inputs.shared,
        sources=build_cache.recipe_and_config_digest(run_inputs.feedstock, config.name),
        options=options.build,
        container=run_inputs.container_engine_name,
        engine_data=engine_data,
        image=run_inputs.places[config.name].image,
        image_platform=run_inputs.places[config.name].platform,
        cores=share.cores,
        memory=options.memory if run_inputs.engine is None else share.memory,
        variables=conda_forge_variables_and_paths.conda_forge_variables(
            run_inputs.feedstock, config.name, caller=options.caller_variables, cores=share.cores, uid=users.uid()
        ),
        environment=dict(run_inputs.machine.environment),
        log="",
        group=compile_group(config),
        cache_key=run_inputs.caches[config.name],
        compile_memory=share.memory,
        **({} if rehearsal is None else rehearsal.job_fields()),
    )


def plan_as_text(plan: RunPlan) -> str:
    """Return a plan as text: the order of builds, then the resources."""
    lines = [f"{_planned_action(config, shared=plan.compiles)}  {config.config}" for config in plan.configs]
    if plan.waiting:
        time = "unknown, no similar config was built here yet" if plan.seconds is None else duration(plan.seconds)
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
    return "\n".join([*lines, *_rehearsal_lines(plan)])


def _rehearsal_lines(plan: RunPlan) -> Iterator[str]:
    """Yield what stands in for the packages of channels; configs with the same contents share the lines."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for config in plan.waiting:
        groups.setdefault(plan.rehearsals.get(config.config, ()), []).append(config.config)
    for summary, names in groups.items():
        if summary:
            yield from ("", f"{', '.join(names)} from:")
            yield from (f"    {title:<14}{text}" for title, text in summary)


def _planned_action(config: ConfigRun, *, shared: bool) -> str:
    """Return what will be done with a config; with a ``shared`` compile cache, whether it is the first of its group."""
    if config.state is ConfigState.CACHED:
        return "done   "
    took = "" if config.estimate is None else f" {duration(config.estimate)}"
    return f"build{took}{' first of ' + config.group if config.cold and shared else ''}"
