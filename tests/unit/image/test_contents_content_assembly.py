"""The contents of a slim image, in layers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from kiln.build.rehearsal.packages import microarch_level_metadata
from kiln.image import contents
from kiln.image.oci import LayerEntry
from tests.unit.image.packages import NUMPY, PACKAGE, REQUEST

ROOT = Path(__file__).parents[3]


def test_rarely_changing_layers_come_first() -> None:
    system, scripts = LayerEntry(path="/s", mode=0o644, data=b""), LayerEntry(path="/o", mode=0o644, data=b"")
    first, second = replace(scripts, path="/p"), replace(scripts, path="/q")
    layers = contents.split_into_layers(REQUEST, [system], {PACKAGE: (first,), NUMPY: (second,)}, [scripts])
    assert [[entry.path for entry in layer.entries] for layer in layers] == [["/s"], ["/q"], ["/p"], ["/o"]]


def test_an_image_has_the_time_of_its_newest_package() -> None:
    assert contents.ImageContents(layers=(), packages=(NUMPY, PACKAGE), debs=()).epoch == 1_700_000_000


def test_the_solve_is_for_the_image() -> None:
    assert contents.virtual_packages("2.36", "")["__glibc"] == ("2.36", "0")
    assert "__cuda" not in contents.virtual_packages("2.36", "")
    assert contents.virtual_packages("2.36", "12.9")["__cuda"] == ("12.9", "0")


def test_its_processor_is_of_the_level_that_tensorflow_is_compiled_for() -> None:
    version, processor = contents.virtual_packages("2.36", "")["__archspec"]
    accepted = [
        facts.version
        for facts in microarch_level_metadata()
        if all(re.match(pattern, processor) for pattern in facts.depends[0].split(" ")[2:])
    ]
    variants = (ROOT / "recipe" / "conda_build_config.yaml").read_text(encoding="utf-8")
    level = re.search(r'^microarch_level:\n(?:  #.*\n)*  - "(\d)"', variants, re.MULTILINE)
    assert level is not None
    assert (version, accepted[-1]) == ("1", level[1])
