"""A copied feedstock whose matrix is built: kiln's commands on it, and what they left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import MissingTool
from kiln.conda.channel import LocalChannel
from kiln.conda.package_reader import read_info_json
from kiln.container.engine import choose_engine
from kiln.image import worker
from kiln.state.ledger.ledger import Ledger
from tests import shared_inputs, warm
from tests.waiting import CEILING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.state.results import ConfigState, MatrixReport

ROOT = Path(__file__).parents[3]
SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"
CONFIGS = sorted(file.stem for file in (SMALL / ".ci_support").glob("*.yaml"))
CUDA_311, CUDA_312, CPU_311, CPU_312 = CONFIGS
BASE = worker.base_image_recipe("bookworm").tag
# A script that goes on only once a file is gone, wherever the feedstock is seen.
HOLD = (
    'while [ -e "$RECIPE_DIR/../.ci_support/hold" ]; do sleep 0.1; done\n'  # a container sees no more of the feedstock
)


def usable(name: str) -> str:
    """An engine that answers and has the base image; a test is skipped where it does not."""
    try:
        engine = choose_engine(name, env=os.environ).engine
        if engine is not None:
            shared_inputs.base_image(engine)
    except MissingTool as missing:
        pytest.skip(missing.what)
    return name


def words(root: Path, *more: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "kiln", "-C", str(root), "build", *more)


def kiln(root: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``kiln build`` to its end."""
    return warm.kiln("-C", str(root), "build", *more, env={**os.environ, **variables})


@contextmanager
def started(root: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``kiln build`` during the test; one that hangs is ended, so that a test which waits for its output fails."""
    with subprocess.Popen(words(root, *more), cwd=ROOT, text=True, stderr=subprocess.PIPE) as process:
        end = threading.Timer(CEILING, process.kill)
        end.start()
        try:
            yield process
        finally:
            end.cancel()
            process.kill()


def wait_for(process: subprocess.Popen[str], text: str) -> list[str]:
    """Read what a run says until a line has a text."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return said
    raise AssertionError(f"never said {text!r}, but {''.join(said)}")


def report(root: Path) -> MatrixReport:
    with Ledger(root / "build_artifacts" / "ledger.sqlite") as ledger:
        result = ledger.run_report()
    assert result is not None
    return result


def states(root: Path) -> dict[str, ConfigState]:
    return {config.config: config.state for config in report(root).configs}


def packages(root: Path) -> set[str]:
    return {file.name for file in LocalChannel(root=root / "build_artifacts").packages()}


def assert_whole(root: Path) -> None:
    """Every package of the channel can be read and stands in its index, and the other way round."""
    channel = LocalChannel(root=root / "build_artifacts")
    names = {read_info_json(package, "index.json") and package.name for package in channel.packages()}
    index: dict[str, Any] = json.loads((channel.root / "linux-64" / "repodata.json").read_text())
    assert set(index["packages.conda"]) == names


def replace(root: Path, file: str, old: str, new: str) -> None:
    path = root / "recipe" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def working_in(folder: Path) -> list[int]:
    result = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink().is_relative_to(folder):
                result.append(int(entry.name))
        except OSError:
            continue
    return result
