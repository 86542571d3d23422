"""The packages that ask for a level of the processor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kiln.rehearse.processor_packages import NAME, level_metadata, processor_packages
from tests.unit.rehearse.sample import info, unpacked

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("processor", "levels"),
    [
        ("x86_64", {"1"}),
        ("x86_64_v2", {"1", "2"}),
        ("sandybridge", {"1", "2"}),
        ("zen", {"1", "2", "3"}),
        ("zen5", {"1", "2", "3", "4"}),
        ("a_processor_of_next_year", {"1", "2", "3", "4"}),
    ],
)
def test_a_processor_has_its_level_and_those_below(processor: str, levels: set[str]) -> None:
    accepted = set()
    for facts in level_metadata():
        (spec,) = facts.depends
        _, version, *build = spec.split(" ")
        assert version == "1.*"
        if all(re.match(pattern, processor) for pattern in build):
            accepted.add(facts.version)
    assert accepted == levels


def test_each_level_is_a_package_without_files(tmp_path: Path) -> None:
    packages = processor_packages(tmp_path)
    assert [info(package, "index")["version"] for package in packages] == ["1", "2", "3", "4"]
    assert {info(package, "index")["name"] for package in packages} == {NAME}
    assert all(name.startswith("info/") for package in packages for name in unpacked(package))
