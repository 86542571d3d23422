"""The platforms that this machine builds for: its own, and others of its system by cross-compilation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import emulation, expand, render
from kiln.emulation import container_subdir, machine_subdir
from kiln.errors import UnsupportedPlatform, raise_all
from kiln.model.source_position import Place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kiln.model.feedstock import Feedstock
    from kiln.model.matrix_config import BuildConfig


def require_buildable_platforms(
    feedstock: Feedstock, configs: Iterable[BuildConfig], *, rehearsal: bool, containers: bool = True
) -> None:
    """Refuse configs that this machine cannot build; without ``containers`` it builds on the host alone.

    Raises:
        UnsupportedPlatform: for each of them.
    """
    raise_all(list(_platform_errors(feedstock, tuple(configs), rehearsal=rehearsal, containers=containers).values()))


def buildable_configs(
    feedstock: Feedstock, names: Iterable[str], *, rehearsal: bool, containers: bool = True
) -> tuple[tuple[str, ...], str]:
    """Return the configs that this machine can build, and a line about the others; empty without any.

    Raises:
        UnsupportedPlatform: when it can build none of them.
    """
    configs = expand.read_configs(feedstock, tuple(names))
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
    if not crossed or not expand.runs_emulated_tests(feedstock.conda_forge_yml):
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
        build = builds[config.platform]
        if error := _config_platform_error(config, build, here, rehearsal=rehearsal, containers=containers):
            errors[config.name] = error
    return errors


def _config_platform_error(
    config: BuildConfig, build: str, here: str, *, rehearsal: bool, containers: bool
) -> UnsupportedPlatform | None:
    """Return why a config for its platform, built on another or the same one, cannot be built here."""
    target = config.platform
    at = Place(file=f".ci_support/{config.name}.yaml")
    if rehearsal and target != here:
        return UnsupportedPlatform(
            f"{config.name} cannot be rehearsed on this machine",
            at=at,
            why=f"it is for {target}, the wheels of a rehearsal here are for {here}",
            hint="build it without --rehearse",
        )
    if target.partition("-")[0] != here.partition("-")[0] or not here.startswith("linux-"):
        why = f"it is for {target}, this machine is {machine_subdir()}"
        return UnsupportedPlatform(
            f"{config.name} cannot be built on this machine", at=at, why=why, hint=_other_machine_hint(build)
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


def _other_machine_hint(build: str) -> str:
    """Return where a config of another system is built: kiln builds for Linux, on macOS in containers alone."""
    if not build.startswith("linux-"):
        return f"build it on {build} with another tool: kiln builds for Linux"
    return "start Docker, which builds it here" if machine_subdir().startswith("osx-") else f"build it on {build}"


def _emulation_hint(target: str) -> str:
    """Return what an emulated build needs, to be tried next."""
    if emulation.can_run_platform(target, in_container=True):
        return "; or emulate it in a container (docker or podman)"
    return (
        f"; or emulate it in a container: this kernel has no interpreter for {target} that containers can use (Debian: "
        "apt-get install qemu-user-static binfmt-support)"
    )
