"""Whether this machine has the resources, platforms and remote executor of a run, before it starts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln.base import files, limits
from kiln.base.errors import OutOfMemory, UnsupportedPlatform, UsageError, raise_all
from kiln.base.position import Place
from kiln.base.system.machine import MachineResources
from kiln.base.text import count_text
from kiln.build.bazel.events import EXECUTOR
from kiln.build.job.job import channels_needed_by_config
from kiln.build.rehearsal.wheel_download import has_upstream_wheel, other_platforms
from kiln.conda.package_writer import SUBDIR
from kiln.container import emulation
from kiln.container.emulation import container_subdir, machine_subdir
from kiln.feedstock import config_file, job_settings
from kiln.recipe import render
from kiln.recipe.rendered import OWN_ENGINE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kiln.build.job.job import RunOptions
    from kiln.recipe.feedstock import BuildConfig, Feedstock
    from kiln.recipe.rendered import RenderedConfig


READ = 1 << 20  # bytes of each file of a recipe that are searched
HTTP = re.compile(r"https?:")


def refuse_ineffective_remote_options(
    feedstock: Feedstock, renderings: Iterable[RenderedConfig], options: RunOptions
) -> None:
    """Refuse options of a remote executor that have no effect.

    Raises:
        UsageError: for another engine or a rehearsal, for a recipe that does not use it, for options without an
            executor, or a cache that Bazel does not combine with one.
    """
    if options.remote_executor is None:
        build = options.build
        named = {
            "--remote-credentials": options.remote_credentials,
            "--remote-jobs": build.remote_jobs,
            "--remote-fallback": build.remote_fallback,
        }
        unused = [name for name, value in named.items() if value]
        if unused:
            raise UsageError(f"{unused[0]} requires --remote-executor")
        return
    if options.build.rehearsal:
        raise UsageError("--remote-executor has no effect with --rehearse", why="a rehearsal compiles nothing by Bazel")
    if options.build.engine != OWN_ENGINE:
        raise UsageError(
            f"--remote-executor requires --engine {OWN_ENGINE}",
            why=f"{options.build.engine} passes none of its variables to a compile",
        )
    if options.remote_cache is not None and HTTP.match(options.remote_cache):
        raise UsageError(
            "Bazel does not combine a remote executor with a cache over HTTP",
            hint="leave the cache out: the executor has its own; or name one with grpc:// or grpcs://",
        )
    if not any(rendered.stagings for rendered in renderings):
        raise UsageError("--remote-executor: the recipe has no compile step that its outputs share")
    for path in sorted(feedstock.recipe.iterdir()):
        if path.is_file():
            with path.open("rb") as file:
                if EXECUTOR.encode() in file.read(READ):
                    break
    else:
        raise UsageError(
            f"--remote-executor: no file of the recipe reads {EXECUTOR}",
            why="a compile by something else than Bazel, or by a script that ignores the variable, would run here",
            hint="leave the option out, or have the compile step pass the variable to --remote_executor of Bazel",
        )


SPARED = 0.9  # of the machine's memory, the rest is the system's
LEAST_DISK = 500_000_000  # bytes for each job without earlier runs that fetches sources or packages of unknown sizes
SMALL_DISK = 20_000_000  # bytes for each job in any case: its script's environment, its log and the ledger
COPIES = 3  # of sources: in the work folder, as they are installed, and in the package
MARGIN = 1.25  # over a config's earlier use


def divide_resources_among_jobs(
    resources: MachineResources, *, jobs: int, cores: int | None, memory: int | None
) -> MachineResources:
    """Divide a machine among jobs, and return the part of each; ``cores`` and ``memory`` are requested for each."""
    if jobs < 1:
        raise UsageError(f"invalid number of jobs: -j {jobs}", hint="-j 1")
    if cores is not None and cores < 1:
        raise UsageError(f"invalid number of cores: --cores {cores}", hint=f"--cores {max(1, resources.cores // jobs)}")
    if memory == 0:
        raise UsageError(
            "invalid amount of memory: --memory 0",
            hint=f"--memory {resources.memory // jobs // 10**6}MB",
        )
    if jobs * (cores or 1) > resources.cores:
        raise UsageError(
            f"{count_text(jobs, 'job')} of {count_text(cores or 1, 'core')} each: "
            f"{jobs * (cores or 1)} needed, this machine has {resources.cores}",
            hint=f"-j {max(1, resources.cores // (cores or 1))}",
        )
    if memory is not None and jobs * memory > resources.memory:
        fitting = resources.memory // memory
        raise OutOfMemory(
            f"{count_text(jobs, 'job')} of {files.human_readable_size(memory)} each: "
            f"{files.human_readable_size(jobs * memory)} needed",
            why=f"this machine has {files.human_readable_size(resources.memory)}",
            hint=f"-j {fitting}" if fitting else f"--memory {resources.memory // 10**6}MB",
        )
    return MachineResources(
        cores=cores or max(1, resources.cores // jobs), memory=memory or int(SPARED * resources.memory / jobs)
    )


def require_memory_of_earlier_builds(peaks: Mapping[str, int], share: MachineResources, *, jobs: int) -> None:
    """Refuse configs that used more memory before than each job may use now."""
    config, peak = max(peaks.items(), key=lambda item: item[1], default=("", 0))
    if peak > share.memory:
        raise OutOfMemory(
            f"{config} used {files.human_readable_size(peak)} of memory when it was last built",
            why=f"each of {count_text(jobs, 'job')} may have {files.human_readable_size(share.memory)}",
            hint="fewer jobs with -j, or more for each with --memory",
        )


def least_disk_of_config(feedstock: Feedstock, rendered: RenderedConfig) -> int:
    """Return the bytes of disk that a config without earlier runs takes on the host at least."""
    sources = rendered.sources
    if channels_needed_by_config(rendered) or any(item.url or item.git_url or item.checkout for item in sources):
        return LEAST_DISK
    paths = [feedstock.recipe / item.path for item in sources if item.path is not None]
    return SMALL_DISK + COPIES * sum(map(files.size_on_disk, paths))


def estimated_disk_use(used: Mapping[str, int], configs: tuple[str, ...], *, jobs: int, least: int = LEAST_DISK) -> int:
    """Return the bytes of disk that a run takes temporarily: its configs' earlier use, or ``least`` without any."""
    sizes = (int(MARGIN * used[config]) if config in used else least for config in configs)
    return sum(max(SMALL_DISK, size) for size in sorted(sizes, reverse=True)[:jobs])


def require_buildable_platforms(
    feedstock: Feedstock, configs: Iterable[BuildConfig], *, rehearsal: bool, containers: bool = True
) -> None:
    """Refuse configs that this machine cannot build; without ``containers`` it builds on the host alone."""
    raise_all(list(_platform_errors(feedstock, tuple(configs), rehearsal=rehearsal, containers=containers).values()))


def buildable_configs(
    feedstock: Feedstock, names: Iterable[str], *, rehearsal: bool, containers: bool = True
) -> tuple[tuple[str, ...], str]:
    """Return the configs that this machine can build, and a line about the others; empty without any.

    Raises:
        UnsupportedPlatform: when it can build none of them.
    """
    configs = config_file.read_configs(feedstock, tuple(names))
    faults = _platform_errors(feedstock, configs, rehearsal=rehearsal, containers=containers)
    if not faults:
        return tuple(config.name for config in configs), ""
    if len(faults) == len(configs):
        raise_all(list(faults.values()))
    left_out = [config for config in configs if config.name in faults]
    targets = ", ".join(sorted({config.platform for config in left_out}))
    count = f"{len(left_out)} config{'s' if len(left_out) > 1 else ''}"
    return (
        tuple(config.name for config in configs if config.name not in faults),
        f"left out: {count} for {targets}, which this machine ({machine_subdir()}) cannot build",
    )


def image_platforms(feedstock: Feedstock, configs: Collection[BuildConfig]) -> dict[str, str]:
    """Return the platforms, such as ``linux/arm64``, of the images that build configs, by the configs' names."""
    builds = render.build_platforms(feedstock, {config.platform for config in configs})
    return {config.name: emulation.oci_platform(builds[config.platform]) for config in configs}


def configs_with_emulated_tests(
    feedstock: Feedstock, configs: Collection[BuildConfig], *, in_container: bool
) -> frozenset[str]:
    """Return the names of the cross-compiled configs whose programs run here all the same, as their tests need."""
    builds = render.build_platforms(feedstock, {config.platform for config in configs})
    crossed = {target for target, build in builds.items() if target != build}
    if not crossed or not job_settings.runs_emulated_tests(feedstock.conda_forge_yml):
        return frozenset()
    running = {target for target in crossed if emulation.can_run_platform(target, in_container=in_container)}
    return frozenset(config.name for config in configs if config.platform in running)


def _platform_errors(
    feedstock: Feedstock, configs: Collection[BuildConfig], *, rehearsal: bool, containers: bool
) -> dict[str, UnsupportedPlatform]:
    builds = render.build_platforms(feedstock, {config.platform for config in configs})
    here = container_subdir() if containers and not rehearsal else machine_subdir()
    errors = {}
    for config in configs:
        if rehearsal and here == SUBDIR and _is_made_of_foreign_wheel(feedstock, config):
            continue
        build = builds[config.platform]
        error = _config_platform_error(config, build, here, rehearsal=rehearsal, containers=containers)
        if error:
            errors[config.name] = error
    return errors


def _is_made_of_foreign_wheel(feedstock: Feedstock, config: BuildConfig) -> bool:
    """Return whether a rehearsal makes a config's packages of upstream's wheel for another platform."""
    if config.platform not in other_platforms():
        return False
    rendered = limits.run_bounded(lambda: render.render(feedstock, config))
    return has_upstream_wheel(output.name for output in rendered.outputs)


def _config_platform_error(
    config: BuildConfig, build: str, here: str, *, rehearsal: bool, containers: bool
) -> UnsupportedPlatform | None:
    """Return why a config for its platform, built on another or the same one, cannot be built here."""
    target = config.platform
    at = Place(file=f".ci_support/{config.name}.yaml")
    if rehearsal and target != here:
        place = container_subdir() if containers else here
        refused = _config_platform_error(config, build, place, rehearsal=False, containers=containers)
        return UnsupportedPlatform(
            f"{config.name} cannot be rehearsed on this machine",
            at=at,
            why=f"it is for {target}, the wheels of a rehearsal here are for {here}",
            hint=refused.hint if refused else "build it without --rehearse",
        )
    if target.partition("-")[0] != here.partition("-")[0] or not here.startswith("linux-"):
        hint = f"build it on {build}"
        if not build.startswith("linux-"):
            hint += " with another tool: kiln builds for Linux"
        elif machine_subdir().startswith("osx-"):
            hint = "start Docker, which builds it here"  # on macOS in containers alone
        return UnsupportedPlatform(
            f"{config.name} cannot be built on this machine",
            at=at,
            why=f"it is for {target}, this machine is {machine_subdir()}",
            hint=hint,
        )
    if machine_subdir() != here and emulation.can_run_platform(build, in_container=True):
        return None
    if build == target != here and containers and emulation.can_run_platform(target, in_container=True):
        return None
    if build != here:
        key = target.replace("-", "_")
        return UnsupportedPlatform(
            f"{config.name} cannot be built on this machine",
            at=at,
            why=f"it is built for {target} on {build}, this machine is {here}",
            hint=f"build it on {build}, or cross-compile: build_platform: {{{key}: {here.replace('-', '_')}}} in "
            f"conda-forge.yml, then kiln rerender{_emulation_hint(target) if build == target else ''}",
        )
    return None


def _emulation_hint(target: str) -> str:
    if emulation.can_run_platform(target, in_container=True):
        return "; or emulate it in a container (docker or podman)"
    return (
        f"; or emulate it in a container: this kernel has no interpreter for {target} that containers can use (Debian: "
        "apt-get install qemu-user-static binfmt-support)"
    )
