"""Choose where configs are built: on this machine, or in containers, each in which image."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import emulation
from kiln.container import engine as container_engine
from kiln.container import image_inspection_and_pull
from kiln.container.engine import Engine, EngineChoice
from kiln.errors import UsageError
from kiln.model.rattler_build_settings import OWN_ENGINE
from kiln.run.options import HOST, RunOptions
from kiln.store.compile_cache_key import toolchain_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kiln.job.host_environment_and_python import HostMachine
    from kiln.model.matrix_config import BuildConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLocation:
    """The location of a config's build: its image's name, and its digest if known; no name on the host.

    ``platform`` is the image's, where programs are emulated: ``linux/arm64``. ``origin`` describes the image from which
    kiln has made this one; the digest is then a hash of what it was made from.
    """

    image: str | None = None
    digest: str = "host"
    platform: str | None = None
    origin: str = ""

    @property
    def pinned_image(self) -> str:
        """The image's name with its digest, as far as known; for an image that kiln has made, its origin."""
        if self.origin:
            return self.origin
        name = self.image or ""
        return f"{name}@{self.digest}" if name and "@" not in name and ":" in self.digest else name

    def compilers_digest(self, machine: HostMachine) -> str:
        """Return the digest of the image that a config is compiled in, or a hash of the machine's own compilers."""
        return self.digest if self.image else toolchain_digest(machine.environment.get("PATH", os.defpath))


def choose_container_engine(options: RunOptions) -> EngineChoice:
    """Return the engine of the builds; a rehearsal runs on the host unless a container is requested.

    Raises:
        UsageError: for a rehearsal by another engine, whose compile cannot be replaced.
        MissingTool: when the requested engine is missing or does not answer.
    """
    if options.build.rehearsal and options.build.engine != OWN_ENGINE:
        raise UsageError("--rehearse requires --engine rattler-build", hint="remove --engine, or --rehearse")
    if options.build.rehearsal and options.container in {None, HOST}:
        return EngineChoice(engine=None, notes=())
    return container_engine.choose_engine(options.container, env=options.client, executable=options.build.executable)


def choose_build_locations(
    configs: Iterable[tuple[BuildConfig, str]],
    options: RunOptions,
    engine: Engine | None,
    on_line: Callable[[str], None] | None,
) -> tuple[dict[str, BuildLocation], tuple[str, ...]]:
    """Return the location of each config's build, and notes on the images; missing images are fetched.

    ``configs`` come with the platforms of their images.

    Raises:
        UsageError: for a config without an image, or an image that is needed for two platforms at once.
        DownloadFailed: for an image that cannot be fetched.
    """
    if engine is None:
        return {config.name: BuildLocation() for config, _ in configs}, ()
    options, notes = _options_with_base_image(options, engine)
    images_of_configs = {config.name: (_image_of_config(config, options), platform) for config, platform in configs}
    digests = {
        name: _digest_of_image_pulled_if_needed(name, platform, options, engine, on_line)
        for name, platform in sorted(_platform_by_image(images_of_configs.values()).items())
    }
    absent = (f"the image {name} is missing and would be fetched" for name in digests if digests[name] == "unknown")
    own = emulation.oci_platform(emulation.container_subdir())
    return {
        config: BuildLocation(image=name, digest=digests[name], platform=None if platform == own else platform)
        for config, (name, platform) in images_of_configs.items()
    }, (*notes, *absent)


def _platform_by_image(images_of_configs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the platform of each image; engines have an image of a name for one platform at a time."""
    platforms: dict[str, str] = {}
    for name, platform in images_of_configs:
        if platforms.setdefault(name, platform) != platform:
            raise UsageError(
                f"the image {name} is needed for {platforms[name]} and for {platform}",
                hint="build the configs of each platform in a run of their own",
            )
    return platforms


def _digest_of_image_pulled_if_needed(
    name: str, platform: str, options: RunOptions, engine: Engine, on_line: Callable[[str], None] | None
) -> str:
    described = image_inspection_and_pull.inspect_image(engine, name)
    if described is not None:
        local = image_inspection_and_pull.platform_in_description(described)
        if local in {platform, ""}:
            return image_inspection_and_pull.digest_in_description(described)
        image_inspection_and_pull.refuse_local_image_of_other_platform(name, local, platform)
    if not options.fetch:
        return "unknown"
    return image_inspection_and_pull.pull_image(engine, name, platform=platform, on_line=on_line)


def _options_with_base_image(options: RunOptions, engine: Engine) -> tuple[RunOptions, tuple[str, ...]]:
    """Use kiln's base image for a rehearsal if it is present: conda-forge's images lack the engine."""
    from kiln.image.build_container_image import base_image_recipe

    base = base_image_recipe().tag
    is_possible = options.build.rehearsal and options.image is None
    if not is_possible or image_inspection_and_pull.inspect_image(engine, base) is None:
        return options, ()
    note = f"rehearsing in {base}, which is present (DOCKER_IMAGE names another)"
    return dataclasses.replace(options, image=base), (note,)


def _image_of_config(config: BuildConfig, options: RunOptions) -> str:
    name = options.image or config.image
    if name is None:
        raise UsageError(
            f"{config.name} names no image to build in",
            hint="docker_image in recipe/conda_build_config.yaml, the variable DOCKER_IMAGE, or --container none",
        )
    return name


def image_names_for_report(places: Mapping[str, BuildLocation]) -> str | None:
    """Return all images of a run as its report names them; None on the host."""
    return ", ".join(sorted({place.pinned_image for place in places.values()} - {""})) or None
