"""The contents of a slim image, in layers."""

from __future__ import annotations

from dataclasses import replace

from kiln.image import contents
from kiln.image.layers import LayerEntry
from tests.unit.image.packages import NUMPY, PACKAGE, REQUEST


def test_rarely_changing_layers_come_first() -> None:
    system, scripts = LayerEntry(path="/s", mode=0o644, data=b""), LayerEntry(path="/o", mode=0o644, data=b"")
    first, second = replace(scripts, path="/p"), replace(scripts, path="/q")
    layers = contents.split(REQUEST, [system], {PACKAGE: (first,), NUMPY: (second,)}, [scripts])
    assert [[entry.path for entry in layer.entries] for layer in layers] == [["/s"], ["/q"], ["/p"], ["/o"]]


def test_an_image_has_the_time_of_its_newest_package() -> None:
    assert contents.ImageContents(layers=(), packages=(NUMPY, PACKAGE), debs=()).epoch == 1_700_000_000


def test_the_solve_is_for_the_image() -> None:
    assert contents.virtual_packages("2.36", "")["__glibc"] == ("2.36", "0")
    assert "__cuda" not in contents.virtual_packages("2.36", "")
    assert contents.virtual_packages("2.36", "12.9")["__cuda"] == ("12.9", "0")
