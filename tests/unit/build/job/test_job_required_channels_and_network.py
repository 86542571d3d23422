from __future__ import annotations

import dataclasses

import pytest

from kiln.build.job.job import channels_needed_by_config, needs_network, python_versions_of_config
from kiln.recipe.rendered import Checkout, Output, OutputTest, Requirements, Source
from tests.unit.build.job.test_job import CONFIG, rendered

LIB = Output(
    name="lib", version="1", build_number=0, build_string="0", subdir="linux-64", run_exports={}, about={}, used={}
)
APP = dataclasses.replace(LIB, name="app", requirements=Requirements(run=("lib 1 0", "__cuda")))


def test_a_config_that_needs_nothing_of_a_channel_has_none() -> None:
    assert channels_needed_by_config(rendered(LIB, APP)) == ()
    assert not needs_network(rendered(LIB, APP, sources=(Source(path="src"),)))


def test_the_variants_channels_are_used_in_their_order() -> None:
    needy = dataclasses.replace(LIB, tests=(OutputTest(requires=("pip",)),))
    assert channels_needed_by_config(rendered(needy)) == ("conda-forge",)
    assert channels_needed_by_config(rendered(needy, channel_sources="a, b")) == ("a", "b")
    assert needs_network(rendered(needy))
    assert not needs_network(rendered(needy, channel_sources="file:///c"))


def test_what_is_skipped_needs_nothing_and_sources_need_the_network() -> None:
    skipped = dataclasses.replace(LIB, name="x", skip=True, requirements=Requirements(host=("python",)))
    assert channels_needed_by_config(rendered(LIB, skipped)) == ()
    assert needs_network(rendered(LIB, sources=(Source(url=("https://a",)),)))
    assert needs_network(rendered(LIB, sources=(Source(checkout=Checkout(program="hg", url="https://a")),)))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("3.11.* *_cpython",), {"3.11"}),
        (("3.10.* *_cpython", "3.13.* *_cp313"), {"3.10", "3.13"}),
        (("3.11", "3.11.9"), {"3.11"}),
        ((), set()),
    ],
)
def test_the_pythons_of_a_config_are_minor_versions(values: tuple[str, ...], expected: set[str]) -> None:
    assert python_versions_of_config(dataclasses.replace(CONFIG, variant={"python": values})) == expected
    assert python_versions_of_config(CONFIG) == frozenset()
