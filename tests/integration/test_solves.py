"""Which TensorFlow each machine gets, from this feedstock's metadata alone, by every solver that is here.

rattler's solver (that of pixi and kiln) is always here. ``libsolv-conda`` (mamba's solver) and ``conda-classic`` are
programs whose setup docs/explanation/choosing-a-build.md describes.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import SolveFailed
from kiln.conda import solve as conda_solve
from tests.solving import PYTHONS, machine, older, record, rendered, stand_ins, write

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kiln.conda.solve import VirtualPackages

NEWEST = "2.21.0"
DRIVERS = ("13.0", "12.9", "12.8", "12.5", "12.4", "12.0")  # CUDA 12.0 is driver 525
Found = dict[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solver:
    """One solver; ``solve`` returns version and build by name, or None when it refuses."""

    name: str
    folder: Path

    def solve(
        self, channels: Iterable[Path], *specs: str, cuda: str | None, arch: str | None = None, flexible: bool = False
    ) -> Found | None:
        virtual_packages = machine(cuda, arch)
        if self.name != "rattler":
            return self._program(channels, specs, virtual_packages, flexible=flexible)
        try:
            records = conda_solve.solve(
                [item.as_uri() for item in channels],
                specs,
                virtual_packages=virtual_packages,
                priority="flexible" if flexible else "strict",
            )
        except SolveFailed:
            return None
        return {item.name.normalized: (str(item.version), str(item.build)) for item in records}

    def _program(
        self, channels: Iterable[Path], specs: Iterable[str], packages: VirtualPackages, *, flexible: bool
    ) -> Found | None:
        virtual = self.folder / "machine.json"
        offered = {f"{name}-1-0.conda": record(name, *told) for name, told in packages.items()}
        virtual.write_text(json.dumps({"packages": {}, "packages.conda": offered}))
        indexes = [str(item / "linux-64/repodata.json") for item in channels]
        argv = [self.name, "flexible" if flexible else "strict", str(virtual), *indexes, "--", *specs]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        if said.startswith("refused"):
            return None
        return {name: (version, build) for name, version, build in (line.split() for line in said.splitlines())}


@pytest.fixture(
    params=[
        "rattler",
        pytest.param("libsolv-conda", marks=[pytest.mark.trial, pytest.mark.needs("libsolv-conda")]),
        pytest.param("conda-classic", marks=[pytest.mark.trial, pytest.mark.needs("conda-classic")]),
    ]
)
def solver(request: pytest.FixtureRequest, tmp_path: Path) -> Solver:
    """Each solver in turn."""
    return Solver(name=request.param, folder=tmp_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """``own``: the twelve configs; ``base``: what they need; ``old``: that, with older releases as others made them."""

    own: Path
    base: Path
    old: Path


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> Channels:
    folder = tmp_path_factory.mktemp("channels")
    own = rendered()
    old = [*older("2.18.0", "12.6"), *older("2.15.0", "11.8")]
    base = list(stand_ins([*own, *old]))
    return Channels(
        own=write(folder / "own", own),
        base=write(folder / "base", [*base, record("uses-tensorflow", "1", depends=("tensorflow >=2.15",))]),
        old=write(folder / "old", [*base, *old, record("uses-tensorflow", "1", depends=("tensorflow >=2.15",))]),
    )


def flavour(found: Found | None, name: str = "tensorflow") -> str:
    """``2.21.0 cuda129``, ``2.21.0 cpu``, or ``refused``."""
    if found is None:
        return "refused"
    version, build = found[name]
    return f"{version} {re.split(r'_|py|h', build)[0]}"


CUDA = f"{NEWEST} cuda129"
CPU = f"{NEWEST} cpu"
TABLE = [
    *((driver, ("tensorflow",), CUDA) for driver in DRIVERS),
    *((driver, ("tensorflow-gpu",), CUDA) for driver in DRIVERS),
    ("12.9", ("tensorflow", "cuda-version 12.5.*"), f"{NEWEST} cuda125"),
    ("11.8", ("tensorflow",), CPU),
    (None, ("tensorflow",), CPU),
    (None, ("tensorflow-gpu",), "refused"),
    *((driver, ("tensorflow-cpu",), CPU) for driver in ("12.9", "11.8", None)),
    *((driver, ("tensorflow-gpu", "tensorflow-cpu"), "refused") for driver in ("12.9", "11.8", None)),
    *((driver, ("uses-tensorflow",), CUDA if driver == "12.9" else CPU) for driver in ("12.9", "11.8", None)),
]


@pytest.mark.parametrize(("cuda", "specs", "gets"), TABLE)
@pytest.mark.parametrize("older_releases", [False, True])
def test_each_machine_gets_its_build(
    channels: Channels, solver: Solver, cuda: str | None, specs: tuple[str, ...], gets: str, *, older_releases: bool
) -> None:
    """An older release with a bare ``__cuda`` in a channel behind this one changes none of it."""
    places = (channels.own, channels.old if older_releases else channels.base)
    assert flavour(solver.solve(places, *specs, cuda=cuda)) == gets


@pytest.mark.parametrize(
    ("arch", "gets"), [(None, CUDA), ("6.0", CUDA), ("7.0", CUDA), ("9.0", CUDA), ("12.1", CUDA), ("5.2", CPU)]
)
def test_a_gpu_that_no_build_has_code_for_gets_the_cpu_build_from_clients_that_detect_it(
    channels: Channels, solver: Solver, arch: str | None, gets: str
) -> None:
    places = (channels.own, channels.base)
    if solver.name == "conda-classic":
        gets = CUDA  # it heeds constraints of a virtual package only where another package requires that
    assert flavour(solver.solve(places, "tensorflow", cuda="12.9", arch=arch)) == gets
    both = solver.solve(places, "tensorflow-gpu", "libtensorflow_cc", cuda="12.9", arch=arch)
    assert (both is None) == (gets == CPU)


def test_a_driver_for_cuda_11_gets_no_gpu_build(channels: Channels, solver: Solver) -> None:
    assert solver.solve((channels.own, channels.base), "tensorflow-gpu", cuda="11.8") is None


@pytest.mark.parametrize(("cuda", "gets"), [("12.9", CUDA), ("12.0", CUDA), ("11.8", CPU), (None, CPU)])
@pytest.mark.parametrize("flexible", [False, True])
def test_the_order_of_channels_changes_nothing(
    channels: Channels, solver: Solver, cuda: str | None, gets: str, *, flexible: bool
) -> None:
    both = [
        solver.solve(places, "tensorflow", cuda=cuda, flexible=flexible)
        for places in ((channels.own, channels.base), (channels.base, channels.own))
    ]
    assert flavour(both[0]) == gets
    assert both[0] == both[1]


@pytest.mark.parametrize(("cuda", "gets"), [("12.9", CUDA), ("12.0", CUDA), (None, CPU)])
def test_all_in_one_channel_is_the_same_as_in_two(
    channels: Channels, solver: Solver, tmp_path: Path, cuda: str | None, gets: str
) -> None:
    assert flavour(solver.solve((merged(channels, tmp_path),), "tensorflow", cuda=cuda)) == gets


def test_a_driver_for_cuda_11_may_get_an_older_release_for_it_from_the_same_channel(
    channels: Channels, solver: Solver, tmp_path: Path
) -> None:
    """For solvers that compare features before versions; see docs/explanation/choosing-a-build.md."""
    found = flavour(solver.solve((merged(channels, tmp_path),), "tensorflow", cuda="11.8"))
    assert found == (CPU if solver.name == "conda-classic" else "2.15.0 cuda118")
    this = flavour(solver.solve((merged(channels, tmp_path),), f"tensorflow {NEWEST}.*", cuda="11.8"))
    assert this == CPU


def merged(channels: Channels, folder: Path) -> Path:
    """One channel with all releases."""
    packages: list[dict[str, object]] = []
    for place in (channels.old, channels.own):
        packages += json.loads((place / "linux-64/repodata.json").read_text())["packages.conda"].values()
    return write(folder / "one", packages)


@pytest.mark.parametrize("python", sorted({version.rsplit(".", 1)[0] for version in PYTHONS}))
@pytest.mark.parametrize(("cuda", "gets"), [("12.9", CUDA), (None, CPU)])
def test_each_python_has_its_build(
    channels: Channels, solver: Solver, python: str, cuda: str | None, gets: str
) -> None:
    found = solver.solve((channels.own, channels.base), "tensorflow", f"python {python}.*", cuda=cuda)
    assert found is not None
    assert flavour(found) == gets
    assert f"py{python.replace('.', '')}h" in found["tensorflow"][1]
    assert f"py{python.replace('.', '')}h" in found["tensorflow-base"][1]


@pytest.mark.parametrize("cuda", ["12.9", None])
def test_a_python_that_no_build_is_for_is_refused(channels: Channels, solver: Solver, cuda: str | None) -> None:
    assert solver.solve((channels.own, channels.base), "tensorflow", "python 3.9.*", cuda=cuda) is None


@pytest.mark.parametrize(
    ("numpy", "gets", "python"), [("<2", "1.26.4", "3.12"), ("2.2.*", "2.2.6", "3.13"), ("<1.26", "", "")]
)
def test_a_pinned_numpy_is_kept(channels: Channels, solver: Solver, numpy: str, gets: str, python: str) -> None:
    found = solver.solve((channels.own, channels.base), "tensorflow", f"numpy {numpy}", cuda="12.9")
    if not gets:
        assert found is None
        return
    assert found is not None
    assert flavour(found) == CUDA
    assert found["numpy"][0] == gets
    assert found["python"][0].startswith(f"{python}.")


@pytest.mark.parametrize(("cuda", "gets"), [("12.9", "2.18.0 cuda126"), (None, "2.18.0 cpu")])
def test_an_older_release_can_be_pinned_along_with_this_one(
    channels: Channels, solver: Solver, tmp_path: Path, cuda: str | None, gets: str
) -> None:
    one = merged(channels, tmp_path)
    assert flavour(solver.solve((one,), "tensorflow 2.18.*", cuda=cuda)) == gets
    assert solver.solve((one,), "tensorflow 2.18.*", "tensorflow-base 2.21.*", cuda=cuda) is None


@pytest.mark.parametrize("cuda", ["12.9", "12.0", "11.8", None])
def test_the_library_for_cpp_is_that_of_the_installed_tensorflow(
    channels: Channels, solver: Solver, cuda: str | None
) -> None:
    places = (channels.own, channels.base)
    alone = solver.solve(places, "libtensorflow_cc", cuda=cuda)
    beside = solver.solve(places, "libtensorflow_cc", "tensorflow", cuda=cuda)
    assert alone is not None
    assert beside is not None
    assert alone["libtensorflow_cc"] == beside["libtensorflow_cc"]
    assert flavour(beside, "libtensorflow_cc") == flavour(beside, "libtensorflow_framework") == flavour(beside)


@pytest.mark.parametrize("cuda", ["12.9", None])
def test_the_cpu_build_brings_no_cuda(channels: Channels, solver: Solver, cuda: str | None) -> None:
    found = solver.solve((channels.own, channels.base), "tensorflow-cpu", cuda=cuda)
    assert found is not None
    assert not [name for name in found if re.match(r"cuda|cudnn|nccl|libcu|libnv", name)]


def test_the_priority_decides_between_channels(tmp_path: Path) -> None:
    first = write(tmp_path / "first", [record("tool", "1"), record("other", "1")])
    second = write(tmp_path / "second", [record("tool", "2"), record("user", "1", depends=("tool >=2",))])
    places = [first.as_uri(), second.as_uri()]

    def versions(spec: str, priority: str) -> dict[str, str]:
        found = conda_solve.solve(places, [spec], virtual_packages=machine(None, None), priority=priority)
        return {package.name.normalized: str(package.version) for package in found}

    assert versions("tool", "strict") == {"tool": "1"}
    assert versions("tool", "flexible") == {"tool": "1"}
    assert versions("tool", "disabled") == {"tool": "2"}
    assert versions("user", "flexible") == {"user": "1", "tool": "2"}
    with pytest.raises(SolveFailed):
        versions("user", "strict")
