"""Which TensorFlow each machine gets from metadata alone, by every solver and client that is here."""

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
from kiln.conda import solve as conda_solve
from kiln.conda.index import IndexEntry
from kiln.conda.solve import solve
from kiln.publish.model import sorted_by_dependencies
from tests import solving_neighbors
from tests.solving import PYTHONS, SOLVERS, Record, Solver, machine, older, record, rendered, stand_ins, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]

NEWEST = "2.21.0"
DRIVERS = ("13.0", "12.9", "12.8", "12.5", "12.4", "12.0")  # CUDA 12.0 is driver 525
Found = dict[str, tuple[str, str]]


@pytest.fixture(params=SOLVERS)
def solver(request: pytest.FixtureRequest, tmp_path: Path) -> Solver:
    """Each solver in turn."""
    return Solver(name=request.param, folder=tmp_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """``own``: ours; ``base``: what they need; ``old``: that, with older releases as others made them."""

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


Packages = dict[str, tuple[str, str]]
REFUSALS = {
    *("UnsatisfiableError", "RattlerUnsatisfiableError", "ResolvePackageNotFound", "PackagesNotFoundError"),
    "PackagesNotFoundInChannelsError",
}
OLDER_CUDA = f"{NEWEST} cuda125"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMachine:
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
    machine: ClientMachine = ClientMachine()
    others: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        here = self.machine
        return f"{' '.join(self.specs)} on CUDA {here.cuda}, glibc {here.glibc}, {here.archspec}"


def row(*specs: str, gets: str, others: Mapping[str, str] | None = None, **machine: str | None) -> Row:
    """Return a row; of ``tensorflow``, if nothing else is asked for first."""
    first = () if specs and specs[0].startswith("tensorflow-serving") else ("tensorflow",)
    here = ClientMachine(**machine)  # type: ignore[arg-type]
    return Row(specs=(*first, *specs), gets=gets, others=others or {}, machine=here)


CLIENT_TABLE = [
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
    # Levels of the processor: these packages are made for 1, 2 and 3, those for CUDA 12.5 for 2 alone.
    *(row(gets=CUDA, archspec=name) for name in ("x86_64", "core2", "x86_64_v2", "nehalem", "steamroller", "zen5")),
    row(gets=CPU, archspec="k10", cuda=None),
    row("cuda-version 12.8.*", gets=OLDER_CUDA, archspec="nehalem"),
    row("cuda-version 12.8.*", gets="2.19.1 cuda126 level1", archspec="nocona"),
    row("tensorflow 2.21.*", "tensorflow-gpu", "cuda-version 12.8.*", gets="refused", archspec="nocona"),
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
def client_channels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
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
def ask_client(
    client_channels: dict[str, Path], client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> Callable[..., Packages | None]:
    """Return a function that asks the client."""

    def ask(row: Row, *names: str) -> Packages | None:
        for name, value in row.machine.overrides.items():
            monkeypatch.setenv(name, value)
        places = [word for name in names or ("own", "base") for word in ("-c", client_channels[name].as_uri())]
        if client == "kiln":
            return by_kiln(places, row.specs, tmp_path, capsys)
        return by_conda(client.rpartition(" ")[2], places, row.specs, tmp_path)

    return ask


@pytest.mark.parametrize("row", CLIENT_TABLE, ids=str)
def test_each_client_takes_the_build_that_fits(ask_client: Callable[..., Packages | None], row: Row) -> None:
    packages = ask_client(row)
    assert build_of(packages, row) == row.gets
    assert {name: (packages or {}).get(name, ("",))[0] for name in row.others} == row.others


@pytest.mark.parametrize("row", ARCHS, ids=lambda row: f"{row.specs[0]} on {row.machine.arch}")
def test_clients_that_detect_gpus_take_no_build_without_code_for_them(
    ask_client: Callable[..., Packages | None], client: str, row: Row
) -> None:
    """conda 26.7 does not know ``__cuda_arch``, and chooses as before."""
    expected = row.gets if client == "kiln" else build_of(ask_client(replace(row, machine=ClientMachine())), row)
    assert build_of(ask_client(row), row) == expected
    if client != "kiln":
        assert "cuda129" in expected


def test_a_driver_for_cuda_9_is_served_with_the_libraries_of_the_channel_main(
    ask_client: Callable[..., Packages | None],
) -> None:
    packages = ask_client(row("tensorflow-serving 1.12.*", gets="", cuda="9.1"), "own", "base", "main")
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


def by_kiln(places: Iterable[str], specs: Iterable[str], folder: Path, capsys: Capture) -> Packages | None:
    """Return what ``kiln install`` would install; None where it refuses."""
    code = main.run(["install", "--dry-run", "--json", "--flexible", "-p", str(folder / "prefix"), *places, *specs])
    output = capsys.readouterr()
    if code == SolveFailed.exit_code:
        return None
    assert code == 0, output.err
    return {item["name"]: (item["version"], item["build"]) for item in json.loads(output.out)["packages"]}


def by_conda(solver: str, places: Iterable[str], specs: Iterable[str], folder: Path) -> Packages | None:
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


OLD = "2.20.0"


def entry(record: Record) -> IndexEntry:
    """A package as it is published."""
    file = f"{record['name']}-{record['version']}-{record['build']}.conda"
    return IndexEntry(file=file, subdir="linux-64", record=record, run_exports={})


def before(record: Record) -> Record:
    """The same package of the release before."""
    told: Record = json.loads(json.dumps(record).replace(NEWEST, OLD))
    return told


@pytest.fixture(scope="module")
def release() -> list[IndexEntry]:
    """All packages of a release in the order in which they are published."""
    return sorted_by_dependencies(map(entry, rendered()))


@pytest.fixture(scope="module")
def moments(release: list[IndexEntry], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The channel at each moment: the release before, then with one package more each time."""
    folder = tmp_path_factory.mktemp("moments")
    new = [dict(item.record) for item in release]
    kept = [*map(before, new), *stand_ins(new)]
    return [write(folder / f"{number}", [*kept, *new[:number]]) for number in range(len(new) + 1)]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("driver", "asked", "kind"),
    [(None, "tensorflow", "cpu"), ("12.9", "tensorflow", "cuda"), ("12.9", "tensorflow-gpu", "cuda")],
)
def test_a_reader_in_between_gets_the_old_release_or_all_of_the_new_one(
    moments: list[Path], driver: str | None, asked: str, kind: str
) -> None:
    result = []
    for channel in moments:
        records = solve([channel.as_uri()], [asked, "python 3.12.*"], virtual_packages=machine(driver))
        ours = [item for item in records if "tensorflow" in item.name.normalized]
        assert {str(item.build).startswith(kind) for item in ours} == {True}, "never another kind of build"
        (version,) = {str(item.version) for item in ours}
        result.append(version)
    change = result.index(NEWEST)
    assert result == [OLD] * change + [NEWEST] * (len(result) - change), "there is one moment for each reader"


@pytest.mark.sampled
def test_a_package_can_be_installed_from_the_moment_that_it_appears(
    release: list[IndexEntry], moments: list[Path]
) -> None:
    for new, channel in zip(release, moments[1:], strict=True):
        asked = f"{new.record['name']} =={NEWEST} {new.record['build']}"
        assert solve([channel.as_uri()], [asked], virtual_packages=machine("12.9"))
