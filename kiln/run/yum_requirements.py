"""The system packages of ``recipe/yum_requirements.txt``, installed into the image of a build as conda-forge's CI does.

conda-smithy writes ``yum install -y`` with all names of the file into the build script, which runs it as root. kiln
derives an image before the build instead, so that the build itself has neither root's rights nor the network.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from kiln import system_package_advice
from kiln.errors import KilnError, RecipeFault, UsageError, combined_error, raise_all
from kiln.model.source_position import Place
from kiln.store import build_cache
from kiln.store.layout import ArtifactLayout
from kiln.yamltext import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kiln.container.engine import Engine
    from kiln.model.feedstock import Feedstock
    from kiln.run.container_engine_and_image_choice import BuildLocation
    from kiln.run.options import RunOptions

FILE = "recipe/yum_requirements.txt"
MOST = 500  # names

# What rpm allows in a name, with an architecture, version and release: no option, path, glob, URL or group.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+~^:-]{0,199}", re.ASCII)


def read_yum_package_positions(feedstock: Feedstock) -> dict[str, Place]:
    """Return the places of the packages in the file, by their names, in its order; empty without the file.

    A comment ends with its line. conda-smithy joins the lines with spaces, so a line may have several names.

    Raises:
        RecipeFault: with all names that are invalid.
    """
    path = feedstock.recipe / "yum_requirements.txt"
    if not path.is_file():
        return {}
    packages: dict[str, Place] = {}
    for number, line in enumerate(read_text(path, FILE).splitlines(), 1):
        for match in re.finditer(r"\S+", line.partition("#")[0]):
            packages.setdefault(match[0], Place(file=FILE, line=number, column=match.start() + 1))
    faults = [_invalid_name_error(name, at) for name, at in packages.items() if not _NAME.fullmatch(name)]
    if len(packages) > MOST:
        faults.append(RecipeFault(f"more than {MOST} packages", at=Place(file=FILE)))
    raise_all(faults)
    return packages


def _invalid_name_error(name: str, at: Place) -> RecipeFault:
    return RecipeFault(
        f"invalid package name {name!r}",
        at=at,
        why="the package manager runs as root, and the file may name packages only: no options, files or patterns",
        hint="one name for each line, such as mesa-libGL",
    )


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

    Raises:
        RecipeFault: for an invalid name, or one that the image's repositories lack.
        UsageError: for an image of the recipe's without such a package manager.
        DownloadFailed: when the packages cannot be installed.
    """
    packages = read_yum_package_positions(feedstock)
    if not packages:
        return dict(places), ()
    if engine is None or options.build.rehearsal:
        return dict(places), (host_packages_note(tuple(sorted(packages)), system_package_advice.package_manager()),)
    from kiln.container import derived_image  # few feedstocks have such packages

    derived: dict[BuildLocation, BuildLocation] = {}
    notes = []
    with build_cache.hold_lock(
        ArtifactLayout.for_feedstock(feedstock).common_lock_file("images"), seconds=derived_image.SECONDS
    ):
        for place in dict.fromkeys(places.values()):
            derived[place], note = _derive_image_with_packages(place, packages, options, engine, on_line)
            notes += [note] if note else []
    return {config: derived[place] for config, place in places.items()}, tuple(notes)


def host_packages_note(names: tuple[str, ...], manager: str | None) -> str:
    """Return the note on packages that this machine must have, with the command if it has such a package manager."""
    command = f": {system_package_advice.installation_command(names, 'dnf')}" if manager == "dnf" else ""
    return f"{FILE} is installed into images only; this machine must have {', '.join(names)}{command}"


def _derive_image_with_packages(
    place: BuildLocation,
    packages: Mapping[str, Place],
    options: RunOptions,
    engine: Engine,
    on_line: Callable[[str], None] | None,
) -> tuple[BuildLocation, str]:
    """Return a location with the packages, and a note; empty if they are installed."""
    from kiln.container import derived_image

    assert place.image is not None, "a build in a container has an image"
    names = tuple(sorted(packages))
    derived = derived_image.DerivedImage(
        image=place.image, digest=place.digest, packages=names, platform=place.platform
    )
    location = dataclasses.replace(
        place, image=derived.tag, digest=derived.key, origin=f"{place.pinned_image} with {' '.join(names)}"
    )
    if not options.fetch:
        exists = derived_image.derived_image_exists(engine, derived)
        return location, "" if exists else f"{FILE} would be installed: {', '.join(names)}"
    refusal = derived_image.provide_derived_image(engine, derived, on_line=on_line)
    if refusal is None:
        return location, ""
    if refusal.unknown:
        raise _unknown_packages_error(packages, refusal.unknown, place.image)
    if options.image is None:
        raise UsageError(
            f"{FILE} cannot be installed into {place.image}",
            why="it has no yum, dnf or microdnf; packages of other systems have other names",
            hint=f"DOCKER_IMAGE={place.image} uses it as it is; it must have {', '.join(names)}",
        )
    return place, f"{FILE} is not installed: {place.image} has no yum or dnf; it must have {', '.join(names)}"


def _unknown_packages_error(packages: Mapping[str, Place], unknown: tuple[str, ...], image: str) -> KilnError:
    """Return the error of names that the image's repositories lack, at their places in the file."""
    return combined_error(
        RecipeFault(
            f"the image {image} has no package {name}",
            at=packages.get(name, Place(file=FILE)),
            why="no repository that is set up in the image has it",
            hint="correct the name, or choose another image (docker_image, DOCKER_IMAGE)",
        )
        for name in unknown
    )
