"""Where configs are built: on this machine, or in which image, with the packages of yum_requirements.txt."""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.base import process
from kiln.base.errors import RecipeFault, UsageError, combined_error, raise_all
from kiln.base.position import Place
from kiln.base.yaml import read_text
from kiln.build.job.job import HOST, RunOptions
from kiln.container import emulation, images
from kiln.container import engine as container_engine
from kiln.container.engine import Engine, EngineChoice
from kiln.recipe.rendered import OWN_ENGINE
from kiln.state.store import cache
from kiln.state.store.compile_cache import toolchain_digest
from kiln.state.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kiln.build.job.job import HostMachine
    from kiln.recipe.feedstock import BuildConfig, Feedstock


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
    """Return the engine of the builds; a rehearsal runs on the host unless a container is requested."""
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
    """
    if engine is None:
        return {config.name: BuildLocation() for config, _ in configs}, ()
    options, notes = _options_with_base_image(options, engine)
    images_of_configs: dict[str, tuple[str, str]] = {}
    platforms: dict[str, str] = {}
    for config, platform in configs:
        name = options.image or config.image
        if name is None:
            raise UsageError(
                f"{config.name} names no image to build in",
                hint="docker_image in recipe/conda_build_config.yaml, the variable DOCKER_IMAGE, or --container none",
            )
        if platforms.setdefault(name, platform) != platform:  # engines have an image of a name for one at a time
            raise UsageError(
                f"the image {name} is needed for {platforms[name]} and for {platform}",
                hint="build the configs of each platform in a run of their own",
            )
        images_of_configs[config.name] = (name, platform)
    digests = {
        name: _digest_of_image_pulled_if_needed(name, platform, options, engine, on_line)
        for name, platform in sorted(platforms.items())
    }
    absent = (f"the image {name} is missing and would be fetched" for name in digests if digests[name] == "unknown")
    own = emulation.oci_platform(emulation.container_subdir())
    return {
        config: BuildLocation(image=name, digest=digests[name], platform=None if platform == own else platform)
        for config, (name, platform) in images_of_configs.items()
    }, (*notes, *absent)


def _digest_of_image_pulled_if_needed(
    name: str, platform: str, options: RunOptions, engine: Engine, on_line: Callable[[str], None] | None
) -> str:
    described = images.inspect_image(engine, name)
    if described is not None:
        local = images.platform_in_description(described)
        if local in {platform, ""}:
            return images.digest_in_description(described)
        images.refuse_local_image_of_other_platform(name, local, platform)
    if not options.fetch:
        return "unknown"
    return images.pull_image(engine, name, platform=platform, on_line=on_line)


def _options_with_base_image(options: RunOptions, engine: Engine) -> tuple[RunOptions, tuple[str, ...]]:
    """Use kiln's base image for a rehearsal if it is present: conda-forge's images lack the engine."""
    from kiln.image.worker import base_image_recipe

    base = base_image_recipe().tag
    is_possible = options.build.rehearsal and options.image is None
    if not is_possible or images.inspect_image(engine, base) is None:
        return options, ()
    note = f"rehearsing in {base}, which is present (DOCKER_IMAGE names another)"
    return dataclasses.replace(options, image=base), (note,)


def image_names_for_report(places: Mapping[str, BuildLocation]) -> str | None:
    """Return all images of a run as its report names them; None on the host."""
    return ", ".join(sorted({place.pinned_image for place in places.values()} - {""})) or None


FILE = "recipe/yum_requirements.txt"
MOST = 500  # names

# What rpm allows in a name, with an architecture, version and release: no option, path, glob, URL or group.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+~^:-]{0,199}", re.ASCII)


def read_yum_package_positions(feedstock: Feedstock) -> dict[str, Place]:
    """Return the places of the packages in the file, by their names, in its order; empty without the file.

    A comment ends with its line. conda-smithy joins the lines with spaces, so a line may have several names.
    """
    path = feedstock.recipe / "yum_requirements.txt"
    if not path.is_file():
        return {}
    packages: dict[str, Place] = {}
    for number, line in enumerate(read_text(path, FILE).splitlines(), 1):
        for match in re.finditer(r"\S+", line.partition("#")[0]):
            packages.setdefault(match[0], Place(file=FILE, line=number, column=match.start() + 1))
    faults = [
        RecipeFault(
            f"invalid package name {name!r}",
            at=at,
            why="the package manager runs as root, and the file may name packages only: no options, files or patterns",
            hint="one name for each line, such as mesa-libGL",
        )
        for name, at in packages.items()
        if not _NAME.fullmatch(name)
    ]
    if len(packages) > MOST:
        faults.append(RecipeFault(f"more than {MOST} packages", at=Place(file=FILE)))
    raise_all(faults)
    return packages


def add_packages_to_images(
    feedstock: Feedstock,
    places: Mapping[str, BuildLocation],
    options: RunOptions,
    engine: Engine | None,
    on_line: Callable[[str], None] | None,
) -> tuple[dict[str, BuildLocation], tuple[str, ...]]:
    """Return the locations of builds with images that have the packages, and notes; missing images are made.

    On the host, and in a rehearsal, nothing is installed, which a note says; so does an image without a package manager
    for RPM packages, if the caller has chosen it.
    """
    packages = read_yum_package_positions(feedstock)
    if not packages:
        return dict(places), ()
    if engine is None or options.build.rehearsal:
        return dict(places), (host_packages_note(tuple(sorted(packages)), process.package_manager()),)
    from kiln.container import container  # few feedstocks have such packages

    derived: dict[BuildLocation, BuildLocation] = {}
    notes = []
    with cache.hold_lock(ArtifactLayout.for_feedstock(feedstock).common_lock_file("images"), seconds=container.SECONDS):
        for place in dict.fromkeys(places.values()):
            derived[place], note = _derive_image_with_packages(place, packages, options, engine, on_line)
            notes += [note] if note else []
    return {config: derived[place] for config, place in places.items()}, tuple(notes)


def host_packages_note(names: tuple[str, ...], manager: str | None) -> str:
    """Return the note on packages that this machine must have, with the command if it has such a package manager."""
    command = f": {process.installation_command(names, 'dnf')}" if manager == "dnf" else ""
    return f"{FILE} is installed into images only; this machine must have {', '.join(names)}{command}"


def _derive_image_with_packages(
    place: BuildLocation,
    packages: Mapping[str, Place],
    options: RunOptions,
    engine: Engine,
    on_line: Callable[[str], None] | None,
) -> tuple[BuildLocation, str]:
    """Return a location with the packages, and a note; empty if they are installed."""
    from kiln.container import container

    assert place.image is not None, "a build in a container has an image"
    names = tuple(sorted(packages))
    derived = container.DerivedImage(image=place.image, digest=place.digest, packages=names, platform=place.platform)
    location = dataclasses.replace(
        place, image=derived.tag, digest=derived.key, origin=f"{place.pinned_image} with {' '.join(names)}"
    )
    if not options.fetch:
        exists = container.derived_image_exists(engine, derived)
        return location, "" if exists else f"{FILE} would be installed: {', '.join(names)}"
    refusal = container.provide_derived_image(engine, derived, on_line=on_line)
    if refusal is None:
        return location, ""
    if refusal.unknown:
        raise combined_error(
            RecipeFault(
                f"the image {place.image} has no package {name}",
                at=packages.get(name, Place(file=FILE)),
                why="no repository that is set up in the image has it",
                hint="correct the name, or choose another image (docker_image, DOCKER_IMAGE)",
            )
            for name in refusal.unknown
        )
    if options.image is None:
        raise UsageError(
            f"{FILE} cannot be installed into {place.image}",
            why="it has no yum, dnf or microdnf; packages of other systems have other names",
            hint=f"DOCKER_IMAGE={place.image} uses it as it is; it must have {', '.join(names)}",
        )
    return place, f"{FILE} is not installed: {place.image} has no yum or dnf; it must have {', '.join(names)}"
