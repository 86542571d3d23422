"""The overhead of a container: small configs built on the host, and in each engine that answers."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import MissingTool
from kiln.container.engine import choose_engine
from tests import shared_inputs
from tests.bench.timing import ROOT, build, seconds

if TYPE_CHECKING:
    from tests.bench.timing import Row

SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"
CONFIGS = len(list((SMALL / ".ci_support").glob("*.yaml")))
WORDS = ("--all", "--rebuild", "--container")
ROUNDS, MOST = 3, 3.0


def rows() -> list[Row]:
    """Time the matrix in each place in turn, round after round, so that other work slows all places alike."""
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
        plain = Path(shutil.copytree(SMALL, Path(folder) / "plain"))
        apart = with_scripts_apart(Path(shutil.copytree(SMALL, Path(folder) / "apart")))
        engines = [name for name in ("docker", "podman") if usable(name)]
        once = {"on the host": partial(build, plain, *WORDS, "none")}
        once |= {f"in {name}": partial(build, plain, *WORDS, name) for name in engines}
        once |= {f"in {name}, scripts without the network": partial(build, apart, *WORDS, name) for name in engines}
        for call in once.values():
            call()  # warms the file system's cache, and finds out how the engine is to be run
        took = [{place: seconds(call) for place, call in once.items()} for _ in range(ROUNDS)]
    host, *others = once
    alone = statistics.median(item[host] for item in took) / CONFIGS
    added = {place: statistics.median(item[place] - item[host] for item in took) / CONFIGS for place in others}
    return [
        (f"a small config {host}, of {CONFIGS}", f"{alone:.2f} s", ""),
        *((f"  {place}, added", f"{more:.2f} s", f"{MOST:.0f} s") for place, more in added.items()),
    ]


def with_scripts_apart(feedstock: Path) -> Path:
    """Have a recipe name a grant of the network that no step has: the engine gets it then, and no script."""
    recipe = feedstock / "recipe" / "meta.yaml"
    recipe.write_text(recipe.read_text().replace("extra:\n", "extra:\n  network: nothing\n"))
    return feedstock


def usable(name: str) -> bool:
    """Return whether an engine answers, after making sure that it has kiln's base image."""
    try:
        engine = choose_engine(name, env=os.environ).engine
        assert engine is not None
        shared_inputs.base_image(engine)
    except MissingTool:
        return False
    return True
