"""Where cells are built: on this machine, or in containers of which engine, each in which image."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import container, image
from kiln.container import Choice, images, trial
from kiln.errors import UsageError
from kiln.pipeline.compiling import toolchain
from kiln.pipeline.wishes import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kiln.container import Engine
    from kiln.model.cell import Cell
    from kiln.pipeline.machine import Machine
    from kiln.pipeline.wishes import Wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where one cell is built: its image's name with the digest, as far as that is known; no name on the host."""

    image: str | None = None
    digest: str = "host"

    @property
    def pinned(self) -> str:
        """The image's name with its digest, as far as either is known."""
        name = self.image or ""
        return f"{name}@{self.digest}" if name and "@" not in name and ":" in self.digest else name

    def compilers(self, machine: Machine) -> str:
        """The digest of the image that a cell is compiled in, or a hash of the machine's own compilers."""
        return self.digest if self.image else toolchain(machine.environment.get("PATH", os.defpath))


def choose(wishes: Wishes) -> Choice:
    """Return where to build; a rehearsal is this machine's own affair unless a container is asked for.

    Raises:
        UsageError: for a rehearsal by another engine, whose compile nothing can stand in for.
        MissingTool: when the engine that was asked for is missing or does not answer.
    """
    if wishes.rehearsal and wishes.engine != "rattler-build":
        raise UsageError(f"a rehearsal is no affair of {wishes.engine}", hint="leave --engine, or --rehearse")
    if wishes.rehearsal and wishes.container in {None, HOST}:
        return Choice(engine=None, notes=())
    return container.choose(wishes.container, env=wishes.client, executable=wishes.executable)


def of_cells(
    cells: Iterable[Cell], wishes: Wishes, engine: Engine | None, on_line: Callable[[str], None] | None
) -> tuple[dict[str, Where], tuple[str, ...]]:
    """Return where each cell is built, its image fetched when it is not there, and what is to be said of the images.

    Raises:
        UsageError: for a cell that names no image.
        DownloadFailed: for an image that cannot be had.
    """
    if engine is None:
        return {cell.name: Where() for cell in cells}, ()
    wishes, notes = _with_base_image(wishes, engine)
    names = {cell.name: _image_of(cell, wishes) for cell in cells}
    digests = {name: _digest(name, wishes, engine, on_line) for name in sorted(set(names.values()))}
    absent = (f"the image {name} is not here and would be fetched" for name in digests if digests[name] == "unknown")
    return {cell: Where(image=name, digest=digests[name]) for cell, name in names.items()}, (*notes, *absent)


def _digest(name: str, wishes: Wishes, engine: Engine, on_line: Callable[[str], None] | None) -> str:
    described = images.inspect(engine, name)
    if described is not None:
        return images.digest_of(described)
    return images.pull(engine, name, on_line=on_line) if wishes.fetch else "unknown"


def _with_base_image(wishes: Wishes, engine: Engine) -> tuple[Wishes, tuple[str, ...]]:
    """Let a rehearsal run in kiln's base image where that is here: conda-forge's images lack its engine."""
    base = image.default_tag(image.SUITE)
    if not wishes.rehearsal or wishes.image is not None or images.inspect(engine, base) is None:
        return wishes, ()
    said = f"rehearsing in {base}, which is here (DOCKER_IMAGE names another)"
    return dataclasses.replace(wishes, image=base), (said,)


def _image_of(cell: Cell, wishes: Wishes) -> str:
    name = wishes.image or cell.image
    if name is None:
        raise UsageError(
            f"{cell.name} names no image to build in",
            hint="docker_image in recipe/conda_build_config.yaml, the variable DOCKER_IMAGE, or --container none",
        )
    return name


def images_of(places: Mapping[str, Where]) -> str | None:
    """Return all images of a run as its report names them; None on the host."""
    return ", ".join(sorted({place.pinned for place in places.values()} - {""})) or None


def settled(engine: Engine | None, place: Where) -> Engine | None:
    """Return an engine with the options that it needs here, tried with an image; None on the host.

    Raises:
        ContainerFault: when it refuses for a reason that is not known.
    """
    return None if engine is None else trial.workable(engine, str(place.image))
