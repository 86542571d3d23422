"""A compile by Bazel for real: the recipe's scripts, a container, two CUDAs, Pythons that share a cache, a chain."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import rattler.package_streaming

from kiln.base import files
from kiln.base import files as base_files
from kiln.base.errors import BudgetSpent, BuildFailed, MissingTool
from kiln.base.zstd import zstd
from kiln.conda.package_reader import read_info_json
from kiln.image import apt, worker
from kiln.state.ledger.ledger import Ledger
from kiln.state.store import cache, handover
from kiln.state.store.layout import ArtifactLayout
from tests import remote_cache, shared_inputs, small_tensorflow, waiting, warm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.remote_cache import Remote

ROOT = Path(__file__).parents[2]
# Of the actions that a cache could answer: the module's object and the module itself, and the wheel.
PYTHONS_OWN = 3
QEMU = "qemu-aarch64-static"
ELF_AARCH64 = (183).to_bytes(2, "little")
LIBRARIES = ("libtensorflow_framework", "libtensorflow", "libtensorflow_cc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedstock:
    """The copy that is built, and what its compiles did, by config."""

    root: Path
    store: small_tensorflow.Store

    def build(self, config: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Build a config in Docker."""
        words = ("-C", str(self.root), "build", config, "--container", "docker")
        return warm.kiln(*words, "--distdir", str(self.store.downloads), "--json", *more, timeout=1800)

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


CUDA_12_PY_311, CUDA_12_PY_313, CUDA_13_PY_311, _, AARCH64 = sorted(
    file.stem for file in (small_tensorflow.FIXTURE / ".ci_support").glob("*.yaml")
)


@pytest.fixture(scope="module")
def feedstock(tmp_path_factory: pytest.TempPathFactory) -> Feedstock:
    """The small TensorFlow's feedstock."""
    return bazel_feedstock(tmp_path_factory.mktemp("compile") / "small-tensorflow")


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote | None]:
    """A cache for several machines: nginx, which takes what is PUT; None where nginx is not here."""
    if not shutil.which("nginx"):
        yield None
        return
    with remote_cache.served(tmp_path_factory.mktemp("remote")) as cache:
        yield cache


@pytest.fixture(scope="module")
def compiles(feedstock: Feedstock, remote: Remote | None) -> dict[str, dict[str, Any]]:
    """The actions of three compiles, by Bazel's own event file: both Pythons of a CUDA, then the other CUDA.

    The last one also fills the remote cache.
    """
    result = {}
    for config in (CUDA_12_PY_311, CUDA_12_PY_313, CUDA_13_PY_311):
        shared = ("--remote-cache", remote.url) if remote and config == CUDA_13_PY_311 else ()
        ended = feedstock.build(config, *shared)
        assert ended.returncode == 0, ended.stderr
        result[config] = compile_of(json.loads(ended.stdout), config)
    return result


@pytest.mark.slow("an image with Bazel is made, and a small TensorFlow compiled three times")
@pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb")
@pytest.mark.sampled
def test_the_first_config_compiles_everything(compiles: dict[str, dict[str, Any]]) -> None:
    first = compiles[CUDA_12_PY_311]
    assert first["hits"] == 0
    assert first["misses"] > 5 * PYTHONS_OWN


@pytest.mark.slow("an image with Bazel is made, and a small TensorFlow compiled three times")
@pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb")
@pytest.mark.sampled
def test_the_second_python_compiles_what_depends_on_python_alone(compiles: dict[str, dict[str, Any]]) -> None:
    first, second = compiles[CUDA_12_PY_311], compiles[CUDA_12_PY_313]
    assert second["misses"] == PYTHONS_OWN
    assert second["hits"] == first["misses"] - PYTHONS_OWN


@pytest.mark.slow("an image with Bazel is made, and a small TensorFlow compiled three times")
@pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb")
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("cuda", "expected"),
    [
        ("124", ("sm_70", "sm_90", "compute_90")),
        ("130", ("sm_90", "sm_120", "compute_120")),
    ],
)
def test_the_kernels_are_for_the_capabilities_that_cuda_and_policy_have_in_common(
    feedstock: Feedstock, compiles: dict[str, dict[str, Any]], tmp_path: Path, cuda: str, expected: tuple[str, ...]
) -> None:
    assert compiles
    code = "import kernels, pathlib, sys; print(*kernels.in_library(pathlib.Path(sys.argv[1])))"
    words = (sys.executable, "-B", "-c", code, str(feedstock.library(cuda, tmp_path)))
    told = subprocess.run(words, cwd=ROOT / "recipe", text=True, capture_output=True, check=True).stdout
    assert told.strip() == str(expected)


@pytest.mark.slow("an image with Bazel is made, and a small TensorFlow compiled three times")
@pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb")
@pytest.mark.sampled
def test_the_wheel_is_split_into_packages_by_the_recipes_own_scripts(
    feedstock: Feedstock, compiles: dict[str, dict[str, Any]]
) -> None:
    assert compiles
    packages = {item.name: item for item in (feedstock.root / "build_artifacts" / "linux-64").glob("*.conda")}
    # One of each library for a CUDA, whichever Python led; the rest once per config. All passed their tests there.
    counts = {
        name: len([item for item in packages if item.startswith(f"{name}-2.0.1-")])
        for name in (*LIBRARIES, "tensorflow-base", "tensorflow")
    }
    assert counts == {**dict.fromkeys(LIBRARIES, 2), "tensorflow-base": 3, "tensorflow": 3}
    (base,) = (item for name, item in packages.items() if name.startswith("tensorflow-base-2.0.1-cuda124py313"))
    files = {item["_path"] for item in read_info_json(base, "paths.json")["paths"]}
    assert "lib/python3.13/site-packages/tensorflow/python/_pywrap_tensorflow.so" in files
    assert "lib/python3.13/site-packages/tensorflow-2.0.1.dist-info/METADATA" in files


@pytest.mark.slow("an image with Bazel is made, and a small TensorFlow compiled three times")
@pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb")
@pytest.mark.sampled
def test_programs_for_c_and_cpp_link_with_the_libraries_in_a_prefix_of_their_own(
    feedstock: Feedstock, compiles: dict[str, dict[str, Any]]
) -> None:
    """The wheel's library has no ClientSession, so that this is the one that Bazel makes in a call of its own."""
    assert compiles
    text = next((feedstock.artifacts / "logs").glob(f"*/{CUDA_12_PY_311}.log")).read_text()
    for said in (
        "C: 1 + 2 + 3 = 6",
        "C++: done, 1 x 1 + 2 x 2 + 3 x 3 = 14",
        "ClientSession: the largest of 1, 7, 3 is 7",
    ):
        assert said in text
    assert not re.search(r"(check_|pkg-config|CMake)\S*: skipped", text)
    (wheel,) = (file for file in feedstock.wheels() if file.match("cuda12.4/*cp311*"))
    with zipfile.ZipFile(wheel) as archive:
        assert b"ClientSession" not in archive.read("tensorflow/libtensorflow_cc.so.2")
        assert "tensorflow/include/tensorflow/cc/client/client_session.h" not in archive.namelist()
    (package,) = (feedstock.artifacts / "linux-64").glob("libtensorflow_cc-*-cuda124h*.conda")
    files = {item["_path"] for item in read_info_json(package, "paths.json")["paths"]}
    assert "include/tensorflow/cc/client/client_session.h" in files


@pytest.mark.slow("an image with Bazel is made, and a small TensorFlow compiled three times")
@pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb")
@pytest.mark.sampled
def test_the_wheel_has_the_tag_of_its_binaries_and_works_in_a_plain_venv(
    feedstock: Feedstock, compiles: dict[str, dict[str, Any]]
) -> None:
    assert compiles
    wheels = {str(file.relative_to(feedstock.artifacts / "wheels")): file for file in feedstock.wheels()}
    assert [re.sub(r"manylinux_2_\d+_", "manylinux_2_NN_", name) for name in sorted(wheels)] == [
        "cuda12.4/tensorflow-2.0.1-cp311-cp311-manylinux_2_NN_x86_64.whl",
        "cuda12.4/tensorflow-2.0.1-cp313-cp313-manylinux_2_NN_x86_64.whl",
        "cuda13.0/tensorflow-2.0.1-cp311-cp311-manylinux_2_NN_x86_64.whl",
    ]
    with Ledger(feedstock.artifacts / "ledger.sqlite") as ledger:
        (known,) = ledger.latest_steps("config", CUDA_12_PY_313)
        told = known.detail["packages"][-1]
        kept = ledger.stored_artifact(told["artifact"]["path"])
    assert kept is not None
    wheel = wheels["cuda12.4/" + Path(kept.path).name]
    assert kept.sha256 == told["artifact"]["sha256"] == base_files.sha256(wheel)
    assert (told["tests"]["verdict"], told["tests"]["commands"]) == ("passed", 2)
    log = next((feedstock.artifacts / "logs").glob(f"*/{CUDA_12_PY_313}.log")).read_text()
    assert "Successfully installed tensorflow-2.0.1" in log


@pytest.mark.slow("an image with Bazel is made, and a small TensorFlow compiled three times")
@pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb")
@pytest.mark.sampled
def test_the_message_of_a_failing_action_stands_at_the_end(
    feedstock: Feedstock, compiles: dict[str, dict[str, Any]]
) -> None:
    assert compiles
    source = feedstock.root / "recipe" / "source" / "tensorflow" / "core" / "ops" / "cast.cc"
    text = source.read_text()
    source.write_text(f'#error "no luck with this one"\n{text}')
    try:
        ended = feedstock.build(CUDA_12_PY_311, "--rebuild")
    finally:
        source.write_text(text)
    assert ended.returncode == BuildFailed.exit_code
    (config,) = json.loads(ended.stdout)["configs"]
    assert config["reason"].startswith("compile: CppCompile of //tensorflow/core")
    assert 'error: #error "no luck with this one"' in config["reason"]


@pytest.mark.slow("an image with Bazel is made, and a small TensorFlow compiled three times")
@pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb")
@pytest.mark.sampled
@pytest.mark.needs("nginx")
def test_what_one_machine_has_compiled_another_finds_in_the_remote_cache(
    feedstock: Feedstock, compiles: dict[str, dict[str, Any]], remote: Remote | None
) -> None:
    """The other machine is this one, without its own caches."""
    assert remote is not None
    for folder in (feedstock.artifacts / "compile-cache").iterdir():
        base_files.remove(folder)
    ended = feedstock.build(CUDA_13_PY_311, "--rebuild", "--remote-cache", remote.url)
    assert ended.returncode == 0, ended.stderr
    first, again = compiles[CUDA_13_PY_311], compile_of(json.loads(ended.stdout), CUDA_13_PY_311)
    assert (again["hits"], again["misses"]) == (first["misses"], 0)
    with_password = [
        file
        for file in feedstock.artifacts.rglob("*")
        if file.is_file() and not file.is_symlink() and remote.password.encode() in file.read_bytes()
    ]
    assert with_password == []
    assert remote.password not in ended.stdout + ended.stderr


@pytest.mark.slow("an image with Bazel is made, and a small TensorFlow compiled")
@pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb", QEMU)
@pytest.mark.sampled
def test_what_is_cross_compiled_for_aarch64_computes_there(feedstock: Feedstock, tmp_path: Path) -> None:
    ended = feedstock.build(AARCH64)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count('"skipped"') == len(LIBRARIES) + 3, "the tests of the packages and of the wheel"
    (wheel,) = (file.name for file in feedstock.wheels() if file.match("*aarch64.whl"))
    assert re.fullmatch(r"tensorflow-2\.0\.1-cp313-cp313-manylinux_2_\d+_aarch64\.whl", wheel)

    packages = [*(feedstock.artifacts / "linux-aarch64").glob("*.conda")]
    assert len(packages) == len(LIBRARIES) + 2
    prefix = tmp_path / "prefix"
    for package in (*packages, *(feedstock.store.channel / "linux-aarch64").glob("*.conda")):
        rattler.package_streaming.extract(package, prefix)
    libraries = {file: file.read_bytes()[18:20] for file in (prefix / "lib").rglob("*tensorflow*.so*")}
    assert len(libraries) > 3 * len(LIBRARIES)
    assert set(libraries.values()) == {ELF_AARCH64}
    environment = {"PREFIX": str(prefix), "PYTHONPATH": str(prefix / "lib/python3.13/site-packages")}
    python = (QEMU, "-L", str(feedstock.store.arm), str(prefix / "bin/python3.13"), "-B")
    for check in (("check_install.py", "2.0.1"), ("check_operations.py", "None")):
        subprocess.run((*python, *check), cwd=feedstock.root / "recipe", env={**os.environ, **environment}, check=True)


@pytest.fixture
def settings(feedstock: Feedstock) -> Iterator[Path]:
    """The feedstock's compile.ini, put back after the test."""
    path = feedstock.root / "recipe" / "compile.ini"
    text = path.read_text()
    yield path
    path.write_text(text)


@pytest.mark.slow("an image with Bazel is made, and a small TensorFlow compiled three times")
@pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb")
@pytest.mark.sampled
def test_another_bazel_ends_the_build_before_anything_is_compiled(
    feedstock: Feedstock, compiles: dict[str, dict[str, Any]], settings: Path
) -> None:
    assert compiles
    replace(settings, "version = no_version", "version = 7.4.1")
    ended = feedstock.build(CUDA_12_PY_311, "--rebuild")
    assert ended.returncode != 0
    log = max((feedstock.root / "build_artifacts" / "logs").glob("*/*.log"), key=lambda file: file.stat().st_mtime)
    text = log.read_text()
    assert "this TensorFlow is compiled by Bazel 7.4.1, and bazel is 'no_version'" in text, ended.stderr
    assert "Compiling tensorflow" not in text


@pytest.mark.slow("an image with Bazel is made, and a small TensorFlow compiled three times")
@pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb")
@pytest.mark.sampled
def test_a_capability_that_nvcc_does_not_know_is_refused_by_its_own_word(
    feedstock: Feedstock, settings: Path, tmp_path: Path
) -> None:
    replace(settings, "architectures = 50 52", "architectures = 88 50 52")
    replace(settings, "70 = Volta", "88 = what CUDA 13 has first\n70 = Volta")
    with tarfile.open(feedstock.store.downloads / "cuda_nvcc-12.4.1.tar") as tar:
        tar.extract("./bin/nvcc", tmp_path)
    words = (sys.executable, "-B", str(settings.parent / "compile_plan.py"), str(settings))
    config = {"cuda_compiler_version": "12.4", "cudnn": "9.3", "PY_VER": "3.11"}
    asked = (*words, "--nvcc", str(tmp_path / "bin" / "nvcc"))
    ended = subprocess.run(asked, env={**os.environ, **config}, text=True, capture_output=True, check=False)
    assert ended.returncode == 1
    assert "sm_88 is not accepted by" in ended.stderr


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


CHAIN_CONFIG, ACTIONS, LIST = "linux_64_", 8, "begun"
META = """\
package: {name: counted, version: '1'}
source: {path: source}
outputs:
  - name: counted
    script: pack.sh
"""
BUILD = f"""\
set -e
bazel() {{ command bazel --output_user_root="$SRC_DIR/bazel" "$@"; }}
trap 'bazel shutdown' EXIT
bazel build --disk_cache="$BAZEL_DISK_CACHE" --build_event_json_file="$BAZEL_BUILD_EVENTS" --jobs=1 \\
    --spawn_strategy=local --action_env=LIST="$BAZEL_DISK_CACHE/{LIST}" //:all
mkdir dist
cp bazel-bin/*.txt dist
"""
# While the file "begun.wait" exists, no action ends.
COMMAND = "echo part%d >>$$LIST; sleep 0.5; while [ -e $$LIST.wait ]; do sleep 0.1; done; echo %d >$@"
RULES = f"""\
[genrule(
    name = "part%d" % part,
    outs = ["part%d.txt" % part],
    cmd = "{COMMAND}" % (part, part),
) for part in range({ACTIONS})]
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with a checkout of the feedstock, and nothing that another one has made but the folder of the chain."""

    root: Path
    chain: Path

    def words(self, *more: str) -> tuple[str, ...]:
        """The command of each job."""
        kiln = (
            sys.executable,
            "-m",
            "kiln",
            "-C",
            str(self.root),
            "build",
            CHAIN_CONFIG,
            "--container",
            "docker",
            "-q",
        )
        return (*kiln, "--handover", str(self.chain), *more)

    def build(self, *more: str) -> subprocess.CompletedProcess[str]:
        """Run a job to its end."""
        return subprocess.run(
            self.words(*more), cwd=ROOT, env=environment(), text=True, capture_output=True, check=False
        )

    def begun(self) -> list[str]:
        """The actions that began here, in order."""
        lists = list((self.root / "build_artifacts" / "compile-cache").glob(f"*/{LIST}"))
        return lists[0].read_text().split() if lists else []

    def slow_down(self) -> None:
        """Have no action finish here any more."""
        (folder,) = (self.root / "build_artifacts" / "compile-cache").glob("*/")
        (folder / f"{LIST}.wait").touch()

    def kill_after(self, actions: int) -> None:
        """Kill a job when some actions have begun, and wait until its processes and containers have ended."""
        job = subprocess.Popen(self.words(), cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL)
        waiting.until(lambda: len(self.begun()) >= actions, f"{actions} actions", job)
        job.send_signal(signal.SIGKILL)
        job.wait()
        lock = ArtifactLayout(root=self.root / "build_artifacts").lock_file(CHAIN_CONFIG)
        with cache.hold_lock(lock, seconds=waiting.CEILING):
            pass

    def package(self) -> str:
        """The hash of the package."""
        (package,) = (self.root / "build_artifacts").glob("*/counted-*.conda")
        return files.sha256(package)


def environment() -> dict[str, str]:
    return {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}


def machine(folder: Path, chain: Path) -> Machine:
    write_feedstock(folder, BUILD, RULES)
    return Machine(folder, chain)


def write_feedstock(folder: Path, script: str, rules: str) -> None:
    """Write a feedstock with one config, which compiles by a script and Bazel's rules, and packs the texts made."""
    contents = {
        "recipe/meta.yaml": META,
        "recipe/build.sh": script,
        "recipe/pack.sh": 'cp "$SRC_DIR"/dist/*.txt "$PREFIX"\n',
        "recipe/source/WORKSPACE": "",
        "recipe/source/BUILD": rules,
        "conda-forge.yml": "provider: {linux_64: github_actions}\n",
        f".ci_support/{CHAIN_CONFIG}.yaml": f"""\
docker_image:
- {small_tensorflow.IMAGE}
target_platform:
- linux-64
""",
    }
    for name, text in contents.items():
        files.write_text(folder / name, text)


@pytest.fixture(scope="module")
def bazel_image() -> None:
    """Have the image with Debian's Bazel."""
    try:
        engine = shared_inputs.docker_engine()
    except MissingTool as missing:
        pytest.skip(missing.what)
    if not apt.sources_list_lines("trixie", env=os.environ):
        pytest.skip("this machine's apt knows no mirror of Debian")
    recipe = worker.base_image_recipe("trixie", (*small_tensorflow.BAZEL, *small_tensorflow.FINDERS))
    shared_inputs.provide_image(engine, recipe, small_tensorflow.IMAGE)


@pytest.mark.sampled
@pytest.mark.slow("a compile is stopped and killed four times over")
@pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb")
@pytest.mark.usefixtures("bazel_image")
def test_a_chain_of_stopped_and_killed_jobs_runs_no_finished_action_again(tmp_path: Path) -> None:
    chain = tmp_path / "chain"
    first, second, third = (machine(tmp_path / name, chain) for name in ("first", "second", "third"))
    at_once = machine(tmp_path / "at-once", tmp_path / "of-its-own")
    in_one_go = subprocess.Popen(
        at_once.words(), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    ended = first.build("--budget", "2 actions")
    assert ended.returncode == BudgetSpent.exit_code, ended.stderr
    left = [(path.name, files.sha256(path)) for path in sorted(chain.iterdir())]

    second.kill_after(2)
    assert [(path.name, files.sha256(path)) for path in sorted(chain.iterdir())] == left
    by_the_killed = second.begun()

    second.slow_down()
    ended = second.build("--budget", "15s")
    assert ended.returncode == BudgetSpent.exit_code, ended.stderr
    by_the_stopped = second.begun()[len(by_the_killed) :]

    ended = third.build("--budget", "10m")
    assert ended.returncode == 0, ended.stderr
    links = [first.begun(), by_the_killed, by_the_stopped, third.begun()]
    # A stopped job's last action was not finished, or not for certain.
    finished = [name for link in links[:-1] for name in link[:-1]] + links[-1]
    assert sorted(finished) == sorted(set(finished)), links
    assert {name for link in links for name in link} == {f"part{number}" for number in range(ACTIONS)}
    assert first.begun()[:-1]
    assert third.begun()

    record = handover.read_handover_record(chain)
    assert record is not None
    assert [name for name, _ in record.packages]
    assert [path.name for path in chain.iterdir()] == [handover.RECORD]

    assert in_one_go.wait(timeout=waiting.CEILING) == 0
    assert sorted(at_once.begun()) == sorted(f"part{number}" for number in range(ACTIONS))
    assert third.package() == at_once.package()

    again = machine(tmp_path / "again", chain).build()
    assert (again.returncode, again.stdout) == (0, "")
    assert "is already finished: 1 package after" in again.stderr
