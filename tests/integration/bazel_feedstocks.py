"""Copies of the small TensorFlow's feedstock, compiled by Bazel in Docker."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import MissingTool
from kiln.base.zstd import zstd
from kiln.image import apt
from tests import shared_inputs, small_tensorflow

ROOT = Path(__file__).parents[2]
# Of the actions that a cache could answer: the module's object and the module itself, and the wheel.
PYTHONS_OWN = 3
LIBRARIES = ("libtensorflow_framework", "libtensorflow", "libtensorflow_cc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedstock:
    """The copy that is built, and what its compiles did, by config."""

    root: Path
    store: small_tensorflow.Store

    def build(self, config: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Build a config in Docker."""
        words = (sys.executable, "-m", "kiln", "-C", str(self.root), "build", config, "--container", "docker")
        value = (*words, "--distdir", str(self.store.downloads), "--json", *more)
        return subprocess.run(value, cwd=ROOT, text=True, capture_output=True, check=False)

    @property
    def artifacts(self) -> Path:
        """The folder of everything that is built."""
        return self.root / "build_artifacts"

    def wheels(self) -> list[Path]:
        """The wheels that were kept."""
        return sorted((self.artifacts / "wheels").rglob("*.whl"))

    def library(self, cuda: str, scratch: Path) -> Path:
        """Unpack libtensorflow_cc of a CUDA version from its package."""
        (package,) = (self.root / "build_artifacts" / "linux-64").glob(f"libtensorflow_cc-*-cuda{cuda}h*.conda")
        with zipfile.ZipFile(package) as file:
            (payload,) = (name for name in file.namelist() if name.startswith("pkg-"))
            data = zstd.decompress(file.read(payload))
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            library = tar.extractfile("lib/libtensorflow_cc.so.2.0.1")
            assert library is not None
            (scratch / "library").write_bytes(library.read())
        return scratch / "library"


def bazel_feedstock(folder: Path) -> Feedstock:
    """Return a copy of the feedstock, with all that it needs fetched or made before; a test is skipped without."""
    try:
        engine = shared_inputs.docker_engine()
    except MissingTool as missing:
        pytest.skip(missing.what)
    if not apt.sources_list_lines("trixie", env=os.environ):
        pytest.skip("this machine's apt knows no mirror of Debian")
    store = small_tensorflow.ready(engine)
    return Feedstock(root=small_tensorflow.feedstock(folder, store), store=store)


def compile_of(report: dict[str, Any], config: str, title: str = "compile") -> dict[str, Any]:
    """Return what the report of a run has on a compile of a config."""
    (entry,) = (item for item in report["configs"] if item["config"] == config)
    (step,) = (item for item in entry["steps"] if item["title"] == title)
    compiled: dict[str, Any] = step["compile"]
    return compiled
