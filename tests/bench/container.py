"""What a container adds to a cell: small ones built afresh on the host, and in each engine that answers."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import image
from kiln.container import choose
from kiln.errors import MissingTool
from kiln.model.feedstock import Feedstock
from tests.bench.timing import ROOT, build, seconds

if TYPE_CHECKING:
    from tests.bench.timing import Row

SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"
CELLS = len(list((SMALL / ".ci_support").glob("*.yaml")))
ROUNDS, MOST = 3, 3.0


def rows() -> list[Row]:
    """Time the matrix in each place in turn, round after round, so that other work slows all places alike."""
    places = ["none", *(name for name in ("docker", "podman") if usable(name))]
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
        feedstock = Path(shutil.copytree(SMALL, Path(folder) / "small-feedstock"))
        once = partial(build, feedstock, "--all", "--rebuild", "--container")
        for place in places:
            once(place)  # warms the file system's cache, and finds out how the engine is to be run
        took = [{place: seconds(partial(once, place)) for place in places} for _ in range(ROUNDS)]
    host = statistics.median(each["none"] for each in took) / CELLS
    added = {place: statistics.median(each[place] - each["none"] for each in took) / CELLS for place in places[1:]}
    return [
        (f"a small cell on the host, of {CELLS}", f"{host:.2f} s", ""),
        *((f"  in {place}, added", f"{more:.2f} s", f"{MOST:.0f} s") for place, more in added.items()),
    ]


def usable(name: str) -> bool:
    """Whether an engine answers; it has kiln's base image then, found or made."""
    try:
        engine = choose(name, env=os.environ).engine
        assert engine is not None
        tag = image.default_tag(image.SUITE)
        image.base(engine, image.recipe(), tag=tag, folder=Feedstock(root=ROOT).artifacts / "images", env=os.environ)
    except MissingTool:
        return False
    return True
