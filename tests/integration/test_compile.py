"""A compile by Bazel for real: the recipe's own scripts, a container, two CUDAs, and Pythons that share a cache."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from backports import zstd

from kiln.archive import read_info
from kiln.container import choose
from kiln.errors import MissingTool
from kiln.image import apt
from tests import small_tensorflow
from tests.fatbin import capabilities

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CUDA_12_PY_311, CUDA_12_PY_313, CUDA_13_PY_311, _ = sorted(
    file.stem for file in (small_tensorflow.FIXTURE / ".ci_support").glob("*.yaml")
)
# Of the actions that a cache could answer: the module's object and the module itself, and the wheel.
PYTHONS_OWN = 3

pytestmark = pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedstock:
    """The copy that is built, and what its compiles did, by cell."""

    root: Path
    store: small_tensorflow.Store

    def build(self, config: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Build a cell in Docker."""
        words = (sys.executable, "-m", "kiln", "-C", str(self.root), "build", config, "--container", "docker")
        given = (*words, "--distdir", str(self.store.downloads), "--json", *more)
        return subprocess.run(given, cwd=ROOT, text=True, capture_output=True, check=False)

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


@pytest.fixture(scope="module")
def feedstock(tmp_path_factory: pytest.TempPathFactory) -> Feedstock:
    """The small TensorFlow's feedstock, with all that it needs fetched or made before."""
    try:
        engine = choose("docker", env=os.environ).engine
    except MissingTool as missing:
        pytest.skip(missing.what)
    assert engine is not None
    if not apt.sources("trixie", env=os.environ):
        pytest.skip("this machine's apt knows no mirror of Debian")
    store = small_tensorflow.ready(engine)
    root = small_tensorflow.feedstock(tmp_path_factory.mktemp("compile") / "small-tensorflow", store)
    return Feedstock(root=root, store=store)


@pytest.fixture(scope="module")
def compiles(feedstock: Feedstock) -> dict[str, dict[str, Any]]:
    """What the compile of three cells did, by Bazel's own event file: both Pythons of a CUDA, then the other CUDA."""
    found = {}
    for config in (CUDA_12_PY_311, CUDA_12_PY_313, CUDA_13_PY_311):
        ended = feedstock.build(config)
        assert ended.returncode == 0, ended.stderr
        found[config] = compile_of(json.loads(ended.stdout), config)
    return found


def compile_of(report: dict[str, Any], config: str) -> dict[str, Any]:
    """Return what the report of a run has on the compile of a cell."""
    (cell,) = (each for each in report["cells"] if each["config"] == config)
    (step,) = (each for each in cell["steps"] if each["title"] == "compile")
    compiled: dict[str, Any] = step["compile"]
    return compiled


def test_the_first_cell_compiles_everything(compiles: dict[str, dict[str, Any]]) -> None:
    first = compiles[CUDA_12_PY_311]
    assert first["hits"] == 0
    assert first["misses"] > 5 * PYTHONS_OWN


def test_the_second_python_compiles_what_depends_on_python_alone(compiles: dict[str, dict[str, Any]]) -> None:
    first, second = compiles[CUDA_12_PY_311], compiles[CUDA_12_PY_313]
    assert second["misses"] == PYTHONS_OWN
    assert second["hits"] == first["misses"] - PYTHONS_OWN


@pytest.mark.parametrize(
    ("cuda", "expected"),
    [
        ("124", {"sm_70", "sm_90", "compute_90"}),
        ("130", {"sm_90", "sm_120", "compute_120"}),
    ],
)
def test_the_kernels_are_for_the_capabilities_that_cuda_and_policy_have_in_common(
    feedstock: Feedstock, compiles: dict[str, dict[str, Any]], tmp_path: Path, cuda: str, expected: set[str]
) -> None:
    assert compiles
    assert capabilities(feedstock.library(cuda, tmp_path)) == expected


def test_the_wheel_is_split_into_packages_by_the_recipes_own_scripts(
    feedstock: Feedstock, compiles: dict[str, dict[str, Any]]
) -> None:
    assert compiles
    packages = {each.name: each for each in (feedstock.root / "build_artifacts" / "linux-64").glob("*.conda")}
    # One of each library for a CUDA, whichever Python led; the rest once per cell. All passed their tests there.
    counts = {
        name: len([each for each in packages if each.startswith(f"{name}-2.0.1-")])
        for name in ("libtensorflow_framework", "libtensorflow_cc", "tensorflow-base", "tensorflow")
    }
    assert counts == {"libtensorflow_framework": 2, "libtensorflow_cc": 2, "tensorflow-base": 3, "tensorflow": 3}
    (base,) = (each for name, each in packages.items() if name.startswith("tensorflow-base-2.0.1-cuda124py313"))
    files = {each["_path"] for each in read_info(base, "paths.json")["paths"]}
    assert "lib/python3.13/site-packages/tensorflow/python/_pywrap_tensorflow.so" in files
    assert "lib/python3.13/site-packages/tensorflow-2.0.1.dist-info/METADATA" in files


@pytest.fixture
def settings(feedstock: Feedstock) -> Iterator[Path]:
    """The feedstock's compile.ini, put back after the test."""
    path = feedstock.root / "recipe" / "compile.ini"
    text = path.read_text()
    yield path
    path.write_text(text)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("version = no_version", "version = 7.4.1", "this TensorFlow is compiled by Bazel 7.4.1, and bazel is 'no_ver"),
        # The settings say that this CUDA compiles for it; nvcc itself knows better.
        ("architectures = 50 52", "architectures = 40 50 52", "sm_40 is not accepted by"),
    ],
)
def test_what_this_toolchain_cannot_compile_ends_the_build_before_anything_is_compiled(
    feedstock: Feedstock, compiles: dict[str, dict[str, Any]], settings: Path, old: str, new: str, said: str
) -> None:
    assert compiles
    text = settings.read_text()
    assert old in text
    settings.write_text(text.replace(old, new).replace("70 = Volta", "40 = what nvcc no longer has\n70 = Volta"))
    ended = feedstock.build(CUDA_12_PY_311, "--rebuild")
    assert ended.returncode != 0
    log = max((feedstock.root / "build_artifacts" / "logs").glob("*/*.log"), key=lambda file: file.stat().st_mtime)
    text = log.read_text()
    assert said in text
    assert "Compiling tensorflow" not in text
