"""Which channels a cell needs, and whether it needs the network."""

from __future__ import annotations

import dataclasses

from kiln.model.cell import Cell
from kiln.model.rendered import Output, Rendered, Requirements, Source, Tests
from kiln.pipeline.compiling import group_of
from kiln.pipeline.outline import channels_for, needs_network

CELL = Cell(name="c", platform="linux-64", variant={}, pin_run_as_build={})
LIB = Output(
    name="lib", version="1", build_number=0, build_string="0", subdir="linux-64", run_exports={}, about={}, used={}
)
APP = dataclasses.replace(LIB, name="app", requirements=Requirements(run=("lib 1 0", "__cuda")))


def rendered(*outputs: Output, sources: tuple[Source, ...] = (), **variant: str) -> Rendered:
    cell = dataclasses.replace(CELL, variant={key: (value,) for key, value in variant.items()})
    return Rendered(cell=cell, outputs=outputs, sources=sources)


def test_a_cell_that_needs_nothing_of_a_channel_has_none() -> None:
    assert channels_for(rendered(LIB, APP)) == ()
    assert not needs_network(rendered(LIB, APP, sources=(Source(path="src"),)))


def test_the_variants_channels_are_used_in_their_order() -> None:
    needy = dataclasses.replace(LIB, tests=Tests(requires=("pip",)))
    assert channels_for(rendered(needy)) == ("conda-forge",)
    assert channels_for(rendered(needy, channel_sources="a, b")) == ("a", "b")
    assert needs_network(rendered(needy))
    assert not needs_network(rendered(needy, channel_sources="file:///c"))


def test_what_is_skipped_needs_nothing_and_sources_need_the_network() -> None:
    skipped = dataclasses.replace(LIB, name="x", skip=True, requirements=Requirements(host=("python",)))
    assert channels_for(rendered(LIB, skipped)) == ()
    assert needs_network(rendered(LIB, sources=(Source(url=("https://a",)),)))


def test_cells_of_one_cuda_share_a_group() -> None:
    groups = [group_of(rendered(cuda_compiler_version=version).cell) for version in ("None", "12.9")]
    assert groups == ["cpu", "cuda12.9"]
