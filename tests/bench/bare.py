"""The yardstick of the benchmark: a rehearsal's packages made, indexed, solved and installed by the engine alone.

``python -m tests.bench.bare FEEDSTOCK``, where a rehearsal has run and left what the packages are made from, and
``python -m tests.bench.bare install CHANNEL PREFIX CACHE``, of tensorflow.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import rattler
from rattler.index import index_fs

from kiln.build.engine.plan import plan_rehearsal
from kiln.build.engine.worker import run_rattler_build
from kiln.build.rehearsal.inputs import cpu_config_for_python, single_python_version
from kiln.build.rehearsal.wheel_download import plan_from_locks, verified_upstream_wheel
from kiln.conda.channel import SUBDIRS
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import pins, render
from kiln.state.store.layout import ArtifactLayout, RehearsalLayout

if TYPE_CHECKING:
    from kiln.build.steps import BuildStep


def main(root: Path) -> None:
    """Do in a fresh folder what the rehearsal of the running Python's CPU config did, without a word or a check."""
    bare = root / "bare"
    os.environ["RATTLER_CACHE_DIR"] = str(bare / "cache")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    rehearsed, steps = planned(root, bare)
    channel = copied_channel(rehearsed, bare / "channel", without={step.output.name for step in steps})
    for step in steps:
        (built,) = run_rattler_build(dict(step.recipe), step.folder, [channel.as_uri()], step.platforms).packages
        shutil.move(built, channel / "linux-64")
        shutil.rmtree(step.folder)
        asyncio.run(index_fs(channel))
    for step in steps:
        prefix = bare / "prefixes" / step.output.name
        asyncio.run(install(channel.as_uri(), step.output.name, prefix, bare / "cache" / "pkgs"))
        shutil.rmtree(prefix)


def planned(root: Path, bare: Path) -> tuple[Path, tuple[BuildStep, ...]]:
    """Return the channel of the rehearsal and the very recipes that it handed to the engine."""
    feedstock = recipe_feedstock.load(root)
    config = cpu_config_for_python(feedstock, f"{sys.version_info.major}.{sys.version_info.minor}")
    upstream = plan_from_locks(python=single_python_version(config)).upstream
    assert upstream is not None, "each lock has its wheel"
    shop = RehearsalLayout(config=ArtifactLayout.for_feedstock(feedstock, rehearsal=True).work_folder(config.name))
    return shop.channel.root, plan_rehearsal(
        pins.close_static_pins(render.render(feedstock, config)),
        recipe_folder=feedstock.recipe,
        folder=bare / "work",
        channels=((bare / "channel").as_uri(),),
        wheel=verified_upstream_wheel(upstream, shop.wheels),
    )


def copied_channel(source: Path, target: Path, *, without: set[str]) -> Path:
    """Link a channel's packages, but its own outputs, into a new one."""
    for subdir in SUBDIRS:
        (target / subdir).mkdir(parents=True)
        for package in (source / subdir).glob("*.conda"):
            if package.name.rsplit("-", 2)[0] not in without:
                (target / subdir / package.name).hardlink_to(package)
    asyncio.run(index_fs(target))
    return target.absolute()


async def install(channel: str, package: str, prefix: Path, cache: Path) -> None:
    """Solve for one package and install it."""
    machine = rattler.VirtualPackage.detect(rattler.VirtualPackageOverrides())
    records = await rattler.solve([channel], [package], virtual_packages=machine)
    await rattler.install(records, prefix, cache_dir=cache, show_progress=False)


if __name__ == "__main__":
    if sys.argv[1] == "install":
        asyncio.run(install(sys.argv[2], "tensorflow", *map(Path, sys.argv[3:])))
    else:
        main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
