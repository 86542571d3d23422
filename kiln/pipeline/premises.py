"""What a run is decided from: its cells, the machine, images and engines, looked up once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import expand
from kiln.pipeline import choice, compatibility, done, preflight, where
from kiln.pipeline.compiling import cache_key
from kiln.pipeline.outline import require_step
from kiln.pipeline.wishes import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kiln.container import Engine
    from kiln.model.cell import Cell
    from kiln.model.feedstock import Feedstock
    from kiln.pipeline.choice import Means
    from kiln.pipeline.done import Inputs
    from kiln.pipeline.machine import Machine
    from kiln.pipeline.preflight import Share
    from kiln.pipeline.where import Where
    from kiln.pipeline.wishes import Wishes
    from kiln.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Premises:
    """What a run is decided from: its cells, with where and of what each is made, its compile's cache, and its share.

    ``means`` are a rehearsal's, empty for a build.
    """

    feedstock: Feedstock
    wishes: Wishes
    machine: Machine
    cells: tuple[Cell, ...]
    engine: Engine | None
    places: Mapping[str, Where]
    means: Mapping[str, Means]
    inputs: Mapping[str, Inputs]
    caches: Mapping[str, str]
    each: Share
    notes: tuple[str, ...]

    @property
    def container(self) -> str:
        """What the report calls the place."""
        return HOST if self.engine is None else self.engine.kind.value


def look_up(
    feedstock: Feedstock,
    wishes: Wishes,
    machine: Machine,
    resources: Resources,
    on_line: Callable[[str], None] | None,
) -> Premises:
    """Look up all that a run is decided from; ``on_line`` hears of images while they are fetched.

    Raises:
        KilnError: see `kiln.pipeline.plan.prepare`.
    """
    each = preflight.share(resources, jobs=wishes.jobs, cores=wishes.cores, memory=wishes.memory)
    cells = tuple(expand.read(feedstock, config) for config in wishes.configs)
    if wishes.from_step is not None:
        require_step(feedstock, cells, wishes.from_step, engine=wishes.engine)
    compatibility.require(feedstock, cells)
    chosen = where.choose(wishes)
    places, notes = where.of_cells(cells, wishes, chosen.engine, on_line)
    on_host = wishes.container in {None, HOST}
    means = choice.required(cells, machine, on_host=on_host) if wishes.rehearsal else {}
    return Premises(
        feedstock=feedstock,
        wishes=wishes,
        machine=machine,
        cells=cells,
        engine=chosen.engine,
        places=places,
        means=means,
        inputs=_inputs(feedstock, places, means, engine=wishes.engine),
        caches={cell.name: cache_key(cell, where=places[cell.name].compilers(machine)) for cell in cells},
        each=each,
        notes=(*chosen.notes, *notes),
    )


def _inputs(
    feedstock: Feedstock, places: Mapping[str, Where], means: Mapping[str, Means], *, engine: str
) -> dict[str, Inputs]:
    recipe = done.recipe_digest(feedstock)
    return {
        config: done.inputs(
            feedstock,
            config,
            recipe=recipe,
            engine=engine,
            where=place.digest,
            rehearsed_with=means[config].key if config in means else None,
        )
        for config, place in places.items()
    }
