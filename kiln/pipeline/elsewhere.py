"""Cells that are built on other machines: what is to be built there, and what has come home from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import expand
from kiln.ledger import Ledger, records
from kiln.pipeline import done
from kiln.pipeline.compiling import group_of
from kiln.pipeline.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kiln.model.artifact import PackageReport
    from kiln.model.feedstock import Feedstock
    from kiln.pipeline.done import Finished, Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """A cell to be built elsewhere: ``group`` is what shares its compile, ``inputs`` what it is made of."""

    config: str
    group: str
    inputs: Inputs


def wanted(feedstock: Feedstock, configs: Sequence[str], *, options: Sequence[str]) -> tuple[Elsewhere, ...]:
    """Return cells as others are to build them, with these options of ``kiln build``.

    Which image a machine has, its own ledger knows; the options stand for where it is built. Raises UnknownConfig.
    """
    recipe, where = done.recipe_digest(feedstock), " ".join(("elsewhere", *options))
    cells = [expand.read(feedstock, config) for config in dict.fromkeys(configs)]
    return tuple(
        Elsewhere(
            config=cell.name,
            group=group_of(cell),
            inputs=done.inputs(feedstock, cell.name, recipe=recipe, engine="rattler-build", where=where),
        )
        for cell in cells
    )


def finished(feedstock: Feedstock, cells: Sequence[Elsewhere]) -> Mapping[str, Finished]:
    """Return those cells that came home before, and whose packages still lie in the channel."""
    layout = Layout.of(feedstock)
    with Ledger(layout.ledger) as ledger:
        found = {cell.config: done.finished(ledger, layout, cell.inputs) for cell in cells}
    return {config: each for config, each in found.items() if each is not None}


def keep(feedstock: Feedstock, cell: Elsewhere, packages: Sequence[PackageReport]) -> tuple[PackageReport, ...]:
    """Put a cell's packages, which came home and were checked, into the channel; returns them where they lie now."""
    layout = Layout.of(feedstock)
    made = [(report.artifact.path, records.package_as_json(report)) for report in packages]
    seconds = sum(report.build_seconds for report in packages)
    with Ledger(layout.ledger) as ledger:
        return done.publish(ledger, layout, cell.config, made, cell.inputs, seconds=seconds, disk=0)
