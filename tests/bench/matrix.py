"""Rerendering, whole process.

Real feedstocks are timed if the reference answers are next to the project, along with a twentieth of what conda-smithy
took for the same work; a generated matrix shows how time and memory grow with the number of configs.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests import builders
from tests.bench.timing import ROOT, median, run, seconds
from tests.builders import LINUX_ONLY

if TYPE_CHECKING:
    from tests.bench.timing import Row

GOLDEN = ROOT.parent / "shared" / "golden"
ROUNDS = 3
SIZES = (10, 100, 1_000, 10_000)
# Seconds that conda-smithy 2026.8.5 took for the same files, on two cores.
CONDA_SMITHY = {
    "tensorflow-2021-10-29": 17, "tensorflow-2026-01-28": 38, "h5py-2026-08-18": 105, "faiss-split-2026-07-02": 72,
    "cupy-2026-06-01": 24, "ffmpeg-2026-08-14": 81, "opencv-2026-07-03": 43, "hdf5-2026-04-30": 15,
    "bazel-2026-07-01": 10, "nccl-2026-04-30": 8,
}  # fmt: skip


def rows() -> list[Row]:
    """Time the real feedstocks, where they are at hand, and the generated ones."""
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
        real = [rerender(case.parent, Path(folder)) for case in sorted(GOLDEN.glob("*/case.json"))]
        return [*real, *(generated(size, Path(folder)) for size in SIZES)]


def rerender(case: Path, folder: Path) -> Row:
    """Time one real feedstock."""
    info = json.loads((case / "case.json").read_text())
    tree = folder / case.name
    shutil.copytree(case, tree, ignore=shutil.ignore_patterns("expected", "case.json"))
    pinning = GOLDEN / "pinning" / info["pinning"] / "conda_build_config.yaml"
    took = median(partial(kiln, tree, "rerender", "-e", str(pinning)), rounds=ROUNDS)
    configs = len(list((tree / ".ci_support").glob("*.yaml")))
    limit = min(2.0, CONDA_SMITHY.get(case.name, 40) / 20)
    return f"rerender {case.name}, {configs} configs", f"{took:.2f} s", f"{limit:.2f} s"


def generated(size: int, folder: Path) -> Row:
    """Time a matrix of one zipped group with as many rows, and return the memory of the largest so far."""
    recipe = "package:\n  name: big\n  version: 1\nrequirements:\n  host:\n    - alpha\n    - beta\n"
    alphas = "".join(f"  - a{index}\n" for index in range(size))
    betas = "".join(f"  - b{index % 7}\n" for index in range(size))
    variants = f"zip_keys:\n  -\n    - alpha\n    - beta\nalpha:\n{alphas}beta:\n{betas}"
    root = builders.feedstock(folder / f"generated-{size}", recipe, variants, LINUX_ONLY).root
    took = seconds(partial(kiln, root, "matrix", "--json"))
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return f"a generated matrix, {size:,} configs", f"{took:.2f} s, {memory} MB", "300 MB"


def kiln(root: Path, *words: str) -> None:
    """Run a kiln command on a feedstock."""
    run(sys.executable, "-m", "kiln", "-C", str(root), *words)
