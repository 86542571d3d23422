"""Who has conda-forge's TensorFlow gets this one from the same channel: nobody stays behind or loses something."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from packaging.version import Version

from tests import solving_neighbors
from tests.solving import SOLVERS, Solver, rendered, stand_ins, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.solving import Record

NEW, OLD = "2.21.0", "2.19.1"
OWN = re.compile(r"(?:lib)?tensorflow(?:_|-(?!hub)|$)")  # the packages of the two feedstocks
Found = dict[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine as a solver sees it: the newest CUDA of its driver, the processor's name, the subdir."""

    cuda: str | None
    processor: str
    subdir: str = "linux-64"

    def __str__(self) -> str:
        return f"{self.processor}, {f'CUDA {self.cuda}' if self.cuda else 'no GPU'}"

    @property
    def level(self) -> int:
        """The highest level of x86-64 that a build of this feedstock may have here; 0 for another processor."""
        levels = solving_neighbors.LEVELS.items()
        return min(3, next((level for level, names in levels if self.processor in names.split()), 0))

    def solve(self, solver: Solver, channels: tuple[Path, ...], specs: tuple[str, ...]) -> Found | None:
        return solver.solve(channels, *specs, cuda=self.cuda, processor=self.processor, subdir=self.subdir)


MACHINES = (
    Machine(cuda=None, processor="x86_64"),  # also a virtual machine with the processor that QEMU has by default
    Machine(cuda=None, processor="sandybridge"),
    Machine(cuda=None, processor="haswell"),
    Machine(cuda=None, processor="zen5"),
    Machine(cuda="13.0", processor="zen4"),
    Machine(cuda="12.9", processor="zen3"),
    Machine(cuda="12.8", processor="skylake_avx512"),
    Machine(cuda="12.2", processor="broadwell"),
    Machine(cuda="12.0", processor="ivybridge"),
    Machine(cuda="12.9", processor="x86_64"),
    Machine(cuda="11.4", processor="haswell"),
    Machine(cuda=None, processor="aarch64", subdir="linux-aarch64"),
)
REQUESTS = (
    *(("tensorflow",), ("tensorflow-cpu",), ("tensorflow-gpu",), ("tensorflow-avx2",), ("tensorflow-sse3",)),
    *(("tensorflow-base",), ("libtensorflow",), ("libtensorflow_cc",), ("libtensorflow_framework",)),
    *(("tensorflow-hub",), ("keras-tuner", "tensorflow"), ("asks-for-c",), ("asks-for-cc",)),
    *(("asks-for-cc", "tensorflow"), ("tensorflow", "python 3.11.*"), ("tensorflow", "protobuf 6.31.*")),
    *(("tensorflow", "cuda-version 12.8.*"), ("tensorflow", "cudnn 9.10.*")),
)
# Whoever asks for these keeps what there is, and why.
KEEP = {
    ("tensorflow-estimator",): "upstream ended the estimator",
    ("linked-with-cc",): "it needs the release that it was linked with",
}
# Bound on purpose: from 9.11 on cuDNN has no kernels for GPUs before Turing, and a V100 would crash.
BOUND = {"cudnn": "9.10.2.21"}
# A processor of level 1 next to a GPU and an older cuda-version: the builds for CUDA 12.5 have level 2 alone.
BEHIND = {("x86_64", ("tensorflow", "cuda-version 12.8.*"))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """``before``: conda-forge's packages; ``after``: these and this feedstock's; ``own``: this feedstock's alone."""

    before: Path
    after: Path
    own: Path


@pytest.fixture(params=SOLVERS[:-1])
def solver(request: pytest.FixtureRequest, tmp_path: Path) -> Solver:
    """Each solver that compares versions before features; conda's classic one does not."""
    return Solver(name=request.param, folder=tmp_path)


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> Channels:
    folder = tmp_path_factory.mktemp("swap")
    before: list[Record] = []
    own: list[Record] = []
    for subdir in ("linux-64", "linux-aarch64"):
        ours, theirs = rendered(subdir=subdir), list(solving_neighbors.present_release(subdir))
        others = [*solving_neighbors.neighbors(), *theirs]
        own += ours
        before += theirs
        before += (
            {**item, "subdir": subdir} for item in (*solving_neighbors.neighbors(), *stand_ins([*ours, *others]))
        )
    before += solving_neighbors.downstreams()
    return Channels(
        before=write(folder / "before", before),
        after=write(folder / "after", [*before, *own]),
        own=write(folder / "own", own),
    )


def is_for_cuda(found: Found) -> bool:
    """Return whether the packages of TensorFlow are builds for CUDA; they are all of one kind."""
    kinds = {build.startswith("cuda") for name, (_, build) in found.items() if OWN.match(name)}
    assert len(kinds) == 1, found
    return kinds.pop()


@pytest.mark.slow("the first one renders all configs")
@pytest.mark.parametrize("specs", REQUESTS, ids=" ".join)
@pytest.mark.parametrize("here", MACHINES, ids=str)
def test_nobody_stays_behind_and_nobody_is_downgraded(
    channels: Channels, solver: Solver, here: Machine, specs: tuple[str, ...]
) -> None:
    before = here.solve(solver, (channels.before,), specs)
    for places in ((channels.after,), (channels.own, channels.before)):
        after = here.solve(solver, places, specs)
        if before is None:
            assert after is None or is_for_cuda(after) == (here.cuda is not None)
            continue
        assert after is not None
        versions = {name: version for name, (version, _) in after.items() if OWN.match(name)}
        if (here.processor, specs) in BEHIND and here.cuda:
            first_channel_decides = places[0] == channels.own
            assert set(versions.values()) == {NEW if first_channel_decides else OLD}
            assert is_for_cuda(after) != first_channel_decides
            continue
        assert set(versions.values()) == {NEW}, after
        assert is_for_cuda(after) == is_for_cuda(before)
        lost = {name for name in before if OWN.match(name)} - after.keys() - {"tensorflow-estimator"}
        assert lost == set()
        for name in before.keys() & after.keys():
            least = min(Version(before[name][0]), Version(BOUND.get(name, before[name][0])))
            assert Version(after[name][0]) >= least, name


@pytest.mark.parametrize("here", MACHINES, ids=str)
def test_each_processor_gets_the_build_of_its_level(channels: Channels, solver: Solver, here: Machine) -> None:
    found = here.solve(solver, (channels.after,), ("tensorflow",))
    assert found is not None
    number = int(found["tensorflow-base"][1].rpartition("_")[2])
    assert number % 200 == 25 * (max(here.level, 1) - 1)


@pytest.mark.parametrize("specs", KEEP, ids=" ".join)
def test_who_needs_the_older_release_keeps_it_whole(channels: Channels, solver: Solver, specs: tuple[str, ...]) -> None:
    for here in MACHINES:
        before, after = (here.solve(solver, (place,), specs) for place in (channels.before, channels.after))
        assert after == before is not None
