"""The total cost of a matrix's compiles: C CUDA versions x P Pythons over C x 1, on the small workspace.

The recipe's own script runs in the image as kiln runs it, with one cache for each CUDA. Work is the time of all
actions, which Bazel's profile has; what Bazel itself takes to start, some seconds of each config, is left out. Debian
has headers of two Pythons; those of 3.13 stand for the other two, whose modules are compiled under names of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.build.bazel.watch import EVENTS, PROFILE, BuildEventFile, BuildWatch, StallDetector
from kiln.container.engine import choose_engine
from tests import small_tensorflow
from tests.bench.timing import ROOT

if TYPE_CHECKING:
    from kiln.state.results import CompileReport
    from tests.bench.timing import Row

PYTHONS = ("3.13", "3.11", "3.12", "3.14")
CUDAS = {"12.4": "9.3", "13.0": "9.12"}
MAY_BE = {2: 1.15, 4: 1.3}


def rows() -> list[Row]:
    """Compile every config; return the ratios, their terms, and the cost of jobs without a shared cache."""
    engine = choose_engine("docker", env=os.environ).engine
    assert engine is not None, "the small workspace compiles in Docker"
    store = small_tensorflow.ready(engine)
    with tempfile.TemporaryDirectory(prefix="kiln-bench-compile-") as scratch:
        return measured({cuda: compiled(Path(scratch), cuda, store) for cuda in CUDAS})


def measured(found: dict[str, list[CompileReport]]) -> list[Row]:
    """Return the rows of the table."""
    work = {cuda: [item.work or 0.0 for item in reports] for cuda, reports in found.items()}
    first = sum(times[0] for times in work.values())
    ratios = {count: sum(sum(times[:count]) for times in work.values()) / first for count in MAY_BE}
    return [
        *(
            (f"compile work, {len(CUDAS)} CUDA x {n} Pythons : x 1", f"{r:.3f}", f"{MAY_BE[n]}")
            for n, r in ratios.items()
        ),
        *(
            (f"  CUDA {cuda}, Python {python}: {item}", f"{item.work:.1f} s", "")
            for cuda, reports in found.items()
            for python, item in zip(PYTHONS, reports, strict=True)
        ),
    ]


def compiled(scratch: Path, cuda: str, store: small_tensorflow.Store) -> list[CompileReport]:
    """Compile all Pythons of a CUDA version, one after the other, and return what Bazel says of each."""
    downloads = scratch / cuda / "downloads"
    shutil.copytree(store.downloads, downloads)
    for python in PYTHONS:
        if not (downloads / f"python-{python}.tar").exists():
            headers_for(python, downloads)
    return [compile_config(scratch / cuda, cuda, python, downloads) for python in PYTHONS]


def headers_for(python: str, downloads: Path) -> None:
    """Make the headers of 3.13 those of another Python."""
    folder = downloads / python
    shutil.unpack_archive(downloads / "python-3.13.tar", folder, filter="tar")
    (folder / "include" / "python3.13").rename(folder / "include" / f"python{python}")
    subprocess.run(("tar", "-C", str(folder), "-cf", str(downloads / f"python-{python}.tar"), "include"), check=True)
    shutil.rmtree(folder)


def compile_config(scratch: Path, cuda: str, python: str, downloads: Path) -> CompileReport:
    """Run the recipe's compile step in the image, and return what Bazel says of it."""
    place, cache, notes = scratch / python, scratch / "cache", scratch / f"{python}-bazel"
    events, profile = notes / EVENTS, notes / PROFILE
    recipe = small_tensorflow.FIXTURE / "recipe"
    shutil.copytree(recipe / "source", place)
    subprocess.run(("patch", "-p1", "--quiet", "-i", str(recipe / "release.patch")), cwd=place, check=True)
    cache.mkdir(exist_ok=True)
    notes.mkdir()
    variables = {
        "HOME": str(place),
        "SRC_DIR": str(place),
        "RECIPE_DIR": str(recipe),
        "PY_VER": python,
        "cuda_compiler_version": cuda,
        "cudnn": CUDAS[cuda],
        "BAZEL_DISK_CACHE": str(cache),
        "BAZEL_BUILD_EVENTS": str(events),
        "BAZEL_PROFILE": str(profile),
        "BAZEL_DISTDIR": str(downloads),
        "BAZEL_CPUS": "2",
        "BAZEL_MEMORY_MB": "4000",
    }
    words = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    mounts = ("--volume", f"{scratch}:{scratch}", "--volume", f"{ROOT}:{ROOT}:ro")
    script = f"cd {place} && bash -e {recipe}/build.sh"
    user = ("--user", f"{os.getuid()}:{os.getgid()}", "--network", "none")
    run = (
        "docker",
        "run",
        "--rm",
        "--entrypoint",
        "bash",
        *user,
        *words,
        *mounts,
        small_tensorflow.IMAGE,
        "-c",
        script,
    )
    ended = subprocess.run(run, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    report = BuildWatch(
        file=BuildEventFile(events), on_progress=lambda _: None, stall=StallDetector(0.0)
    ).compile_report()
    assert report is not None
    return report
