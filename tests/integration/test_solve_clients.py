"""Which TensorFlow the clients of users take from a channel like conda-forge's: one table for all of them.

``kiln install`` is always here. ``conda`` is asked once with rattler's solver (conda-rattler-solver) and once with its
classic one; where it or the solver is missing, these are skipped by name. docs/explanation/choosing-a-build.md says how
to set it up.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import SolveFailed
from kiln.cli import main
from tests import solving_neighbors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]

Packages = dict[str, tuple[str, str]]

REFUSALS = {"UnsatisfiableError", "RattlerUnsatisfiableError", "ResolvePackageNotFound", "PackagesNotFoundError"}
REFUSALS |= {"PackagesNotFoundInChannelsError"}
CUDA, OLDER_CUDA, CPU = "2.21.0 cuda129", "2.21.0 cuda125", "2.21.0 cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Values of conda's variables for a machine. None: ``cuda`` without a driver, ``arch`` not detected."""

    cuda: str | None = "12.9"
    glibc: str = "2.36"
    archspec: str = "x86_64_v3"
    arch: str | None = None

    @property
    def overrides(self) -> Mapping[str, str]:
        return {
            **({} if self.arch is None else {"CONDA_OVERRIDE_CUDA_ARCH": self.arch}),
            "CONDA_OVERRIDE_CUDA": self.cuda or "",
            "CONDA_OVERRIDE_GLIBC": self.glibc,
            "CONDA_OVERRIDE_ARCHSPEC": self.archspec,
            "CONDA_OVERRIDE_LINUX": "6.1",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A machine, what its user asks for, the build of the first package that it gets, and other packages' versions."""

    specs: tuple[str, ...]
    gets: str
    machine: Machine = Machine()
    others: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        here = self.machine
        return f"{' '.join(self.specs)} on CUDA {here.cuda}, glibc {here.glibc}, {here.archspec}"


def row(*specs: str, gets: str, others: Mapping[str, str] | None = None, **machine: str | None) -> Row:
    """Return a row; of ``tensorflow``, if nothing else is asked for first."""
    first = () if specs and specs[0].startswith("tensorflow-serving") else ("tensorflow",)
    here = Machine(**machine)  # type: ignore[arg-type]
    return Row(specs=(*first, *specs), gets=gets, others=others or {}, machine=here)


TABLE = [
    # The drivers 580, 575, 555, 525, 520 and 470, and none.
    *(row(gets=CUDA, cuda=cuda) for cuda in ("13.0", "12.9", "12.5", "12.0")),
    *(row(gets=CPU, cuda=cuda) for cuda in ("11.8", "11.4", None)),
    # glibc: these packages are made for 2.28; an older release is offered to an older system.
    *(row(gets=gets, cuda=cuda, glibc="2.28") for cuda, gets in (("12.9", CUDA), (None, CPU))),
    *(
        row(gets=gets, cuda=cuda, glibc="2.17")
        for cuda, gets in (("12.9", "2.19.1 cuda126 level3"), (None, "2.19.1 cpu level3"))
    ),
    *(row("tensorflow 2.21.*", gets="refused", cuda=cuda, glibc="2.17") for cuda in ("12.9", None)),
    # cuda-version: 12.4 is older, and 13 newer than what any build is made for.
    *(
        row(f"cuda-version {version}.*", gets=gets)
        for version, gets in (
            ("12.4", CPU),
            ("12.5", OLDER_CUDA),
            ("12.6", OLDER_CUDA),
            ("12.8", OLDER_CUDA),
            ("12.9", CUDA),
        )
    ),
    row("cuda-version 13.0.*", gets=CPU, cuda="13.0"),
    row("tensorflow-gpu", "cuda-version 12.4.*", gets="refused"),
    # cuDNN
    row("cudnn 9.3.*", gets=OLDER_CUDA, others={"cudnn": "9.3.0.75"}),
    row("cudnn 9.8.*", gets=CUDA, others={"cudnn": "9.8.0.87"}),
    row("cudnn 9.10.*", gets=CUDA, others={"cudnn": "9.10.2.21"}),
    row("tensorflow 2.21.*", "cudnn 8.*", gets=CPU),
    row("cudnn 9.17.*", "cuda-version 13.*", gets=CPU, cuda="13.0"),
    # Levels of the processor: these packages are made for 2; an older release is offered to a lower one.
    *(row(gets=CUDA, archspec=name) for name in ("x86_64_v2", "nehalem", "steamroller", "zen5")),
    *(row(gets="2.19.1 cuda126 level1", archspec=name) for name in ("x86_64", "core2")),
    row(gets="2.19.1 cpu level1", archspec="k10", cuda=None),
    *(row("tensorflow 2.21.*", gets="refused", archspec=name) for name in ("x86_64", "nocona")),
    # As another package or another release requires them.
    *(row("uses-avx2", gets=CUDA, archspec=name) for name in ("x86_64_v3", "haswell", "x86_64_v4", "zen4")),
    *(row("uses-avx2", gets="refused", archspec=name) for name in ("x86_64", "x86_64_v2", "nehalem")),
    *(
        row("tensorflow 2.19.*", gets=f"2.19.1 cuda126 {level}", archspec=name)
        for name, level in (("x86_64_v2", "level1"), ("x86_64_v3", "level3"), ("zen4", "level3"))
    ),
    # conda-forge's names next to ours: what TensorFlow contains, others have as packages.
    row("tsl_robin_map", "libprotobuf", "libabseil", gets=CUDA, others={"tsl_robin_map": "1.4.0"}),
    row("libprotobuf 6.31.*", gets=CUDA, others={"protobuf": "6.31.1", "libabseil": "20250512.1"}),
    row("libabseil 20260107.*", "libgrpc", gets=CUDA, others={"protobuf": "6.33.5", "grpcio": "1.78.0"}),
    row("libprotobuf 5.29.*", "tensorflow 2.21.*", gets="refused"),
    # Serving: cuDNN ends before the release without kernels for Pascal and Volta.
    row("tensorflow-serving", gets="2.20.0 cuda129", others={"cudnn": "9.10.2.21"}),
    row("tensorflow-serving", gets="2.20.0 cuda129", cuda="12.0"),
    row("tensorflow-serving", "cuda-version 12.6.*", gets="2.20.0 cuda125", others={"cudnn": "9.10.2.21"}),
    row("tensorflow-serving", "cudnn 9.11.*", gets="2.20.0 cpu"),
    row("tensorflow-serving", gets="2.20.0 cpu", cuda=None),
    row("tensorflow-serving", gets="2.20.0 cpu", cuda="11.8"),
    row("tensorflow-serving", "tensorflow-serving-api", "tensorflow", gets="2.20.0 cuda129"),
    row("tensorflow-serving 1.12.*", gets="refused", cuda="9.1"),
]
# For a GPU that a client detects: what __cuda_arch excludes gets the CPU build.
ARCHS = [
    *(row("tensorflow 2.21.*", gets=gets, arch=arch) for arch, gets in (("5.2", CPU), ("7.0", CUDA), ("12.1", CUDA))),
    *(
        row("tensorflow-serving", gets=f"2.20.0 {kind}", arch=arch)
        for arch, kind in (("5.2", "cpu"), ("6.0", "cuda129"), ("12.0", "cuda129"))
    ),
]


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return solving_neighbors.channels(tmp_path_factory.mktemp("channels"))


CLIENTS = [
    "kiln",
    *(
        pytest.param(f"conda {name}", marks=[pytest.mark.trial, pytest.mark.needs("conda")])
        for name in ("rattler", "classic")
    ),
]


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    """Each client in turn."""
    return str(request.param)


@pytest.fixture
def solve(
    channels: dict[str, Path], client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> Callable[..., Packages | None]:
    """Return a function that asks the client."""

    def ask(row: Row, *names: str) -> Packages | None:
        for name, value in row.machine.overrides.items():
            monkeypatch.setenv(name, value)
        places = [word for name in names or ("own", "base") for word in ("-c", channels[name].as_uri())]
        if client == "kiln":
            return kiln(places, row.specs, tmp_path, capsys)
        return conda(client.rpartition(" ")[2], places, row.specs, tmp_path)

    return ask


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_each_client_takes_the_build_that_fits(solve: Callable[..., Packages | None], row: Row) -> None:
    packages = solve(row)
    assert build_of(packages, row) == row.gets
    assert {name: (packages or {}).get(name, ("",))[0] for name in row.others} == row.others


@pytest.mark.parametrize("row", ARCHS, ids=lambda row: f"{row.specs[0]} on {row.machine.arch}")
def test_clients_that_detect_gpus_take_no_build_without_code_for_them(
    solve: Callable[..., Packages | None], client: str, row: Row
) -> None:
    """conda 26.7 does not know ``__cuda_arch``, and chooses as before."""
    expected = row.gets if client == "kiln" else build_of(solve(replace(row, machine=Machine())), row)
    assert build_of(solve(row), row) == expected
    if client != "kiln":
        assert "cuda129" in expected


def test_a_driver_for_cuda_9_is_served_with_the_libraries_of_the_channel_main(
    solve: Callable[..., Packages | None],
) -> None:
    packages = solve(row("tensorflow-serving 1.12.*", gets="", cuda="9.1"), "own", "base", "main")
    assert packages is not None
    assert packages["tensorflow-serving"][1].startswith("cuda90h")
    assert packages["cudatoolkit"][0] == "9.0"
    assert packages["cudnn"][0] == "7.6.5"


def build_of(packages: Packages | None, row: Row) -> str:
    """Return ``2.21.0 cuda129``, ``2.21.0 cpu``, ``2.19.1 cpu level3``, or ``refused``."""
    if packages is None:
        return "refused"
    version, build = packages[row.specs[0].partition(" ")[0]]
    level = re.search(r"level\d", build)
    return " ".join([version, re.split(r"_|py|h", build)[0], *([level[0]] if level else [])])


def kiln(places: Iterable[str], specs: Iterable[str], folder: Path, capsys: Capture) -> Packages | None:
    """Return what ``kiln install`` would install; None where it refuses."""
    code = main.run(["install", "--dry-run", "--json", "--flexible", "-p", str(folder / "prefix"), *places, *specs])
    output = capsys.readouterr()
    if code == SolveFailed.exit_code:
        return None
    assert code == 0, output.err
    return {item["name"]: (item["version"], item["build"]) for item in json.loads(output.out)["packages"]}


def conda(solver: str, places: Iterable[str], specs: Iterable[str], folder: Path) -> Packages | None:
    """Return what ``conda create`` would install; None where it refuses."""
    words = ["conda", "create", "--dry-run", "--json", "--solver", solver, "--override-channels", *places]
    home = {"HOME": str(folder), "CONDA_PKGS_DIRS": str(folder / "pkgs"), "CONDA_CHANNEL_PRIORITY": "flexible"}
    ended = subprocess.run(
        [*words, "--prefix", str(folder / "prefix"), *specs],
        env={**os.environ, **home},
        capture_output=True,
        text=True,
        check=False,
    )
    answer = json.loads(ended.stdout)
    if f"({solver}) but it was not recognized" in answer.get("message", ""):
        pytest.skip(f"conda's solver {solver} is not on this machine")
    if answer.get("exception_name") in REFUSALS:
        return None
    assert answer.get("success"), ended.stdout  # not the exit code: py-rattler may abort as the interpreter ends
    return {item["name"]: (item["version"], item["build_string"]) for item in answer["actions"]["LINK"]}
