"""The inputs that many integration tests use, made once for a clone: images, and the rehearsal of its own feedstock.

Tests in several processes come to it at the same moment, where kiln itself refuses the second: here it waits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.system import files
from kiln.container.engine import choose_engine
from kiln.image import worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.container.engine import Engine
    from kiln.image.worker import ImageRecipe

ROOT = Path(__file__).parents[1]
ARTIFACTS = ROOT / "build_artifacts"
IMAGES = ARTIFACTS / "images"


def docker_engine() -> Engine:
    """Return Docker.

    Raises:
        MissingTool: where it does not answer.
    """
    engine = choose_engine("docker", env=os.environ).engine
    assert engine is not None
    return engine


@contextmanager
def turn(name: str) -> Iterator[None]:
    """Wait for other processes of the tests that make the same input, and keep them waiting during the block."""
    ARTIFACTS.mkdir(exist_ok=True)
    with (ARTIFACTS / f".tests-{name}.lock").open("a") as file:
        files.acquire_lock(file.fileno(), wait=True)
        yield


def provide_image(engine: Engine, recipe: ImageRecipe, tag: str) -> str:
    """Have an image in an engine: found there, or imported, or made first, which takes most of a minute.

    Raises:
        MissingTool: when it has to be made and mmdebstrap is missing.
    """
    with turn("images"):
        return worker.provide_image(engine, recipe, tag=tag, folder=IMAGES, env=os.environ).tag


def base_image(engine: Engine) -> str:
    """Have the base image in an engine, and return its name."""
    recipe = worker.base_image_recipe()
    return provide_image(engine, recipe, recipe.tag)


def worker_image(engine: Engine) -> str:
    """Have the image of the fleet's workers in an engine, and return its name."""
    recipe = worker.worker_recipe()
    return provide_image(engine, recipe, recipe.tag)


def own_rehearsal() -> dict[str, Any]:
    """Return the report on this clone's rehearsal of the CPU config of this Python, made now or found."""
    with turn("rehearsal"):
        argv = (sys.executable, "-m", "kiln", "-C", str(ROOT), "build", "--rehearse", "--json")
        ended = subprocess.run(argv, cwd=ROOT, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    return report
