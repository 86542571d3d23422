"""A rehearsal makes, installs and tests packages of wheels and interpreters; it can be stopped anywhere and goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from kiln.base.errors import (
    AlreadyRunning,
    DiskFull,
    DownloadFailed,
    HashMismatch,
    ReleaseRefused,
    UnsupportedPython,
)
from kiln.base.files import link_or_copy
from kiln.build.rehearsal import python_search, wheel_download
from kiln.build.rehearsal.inputs import cpu_config_for_python
from kiln.build.rehearsal.packages import PackageTarget, convert_wheels, cuda_metadata, library_run_exports
from kiln.build.rehearsal.python_package import write_python_packages
from kiln.build.rehearsal.wheel_download import PYTHONS, plan_from_locks
from kiln.conda import pypi
from kiln.conda.channel import LocalChannel
from kiln.conda.package_reader import read_info_json
from kiln.conda.package_writer import SUBDIR, PackageMetadata, write_metadata_only_package
from kiln.conda.solve import solve
from kiln.conda.specs import strict_rattler_spec
from kiln.feedstock import matrix
from kiln.feedstock.config_file import read_config
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import pins, render
from tests import shared_inputs, warm
from tests.small_disks import mounted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kiln.build.rehearsal.wheels import LockedWheel

pytestmark = [pytest.mark.sampled, pytest.mark.slow("wheels are fetched, packaged and installed, TensorFlow's too")]
ROOT = Path(__file__).parents[2]
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
OWN = python_search.first_available_interpreter(
    first=[Path(sys.executable)], env=os.environ, pythons=[RUNNING, *PYTHONS[::-1]]
)
PYTHON = "" if OWN is None else OWN.minor_version  # of the config that is rehearsed here when none is named
PRODUCT = "import tensorflow as tf; print(float(tf.reduce_sum(tf.matmul(tf.ones([3, 4]), tf.ones([4, 5])))))"
# py-rattler may crash when its interpreter ends, after the work is done: a process of its own, ended at once.
INSTALL = """
import os, sys
from pathlib import Path
from kiln.conda.solve import install, solve
from kiln.conda.solve import machine_virtual_packages
url, prefix, cache, *specs = sys.argv[1:]
install(solve([url], specs, virtual_packages=machine_virtual_packages()), Path(prefix), cache=Path(cache))
sys.stdout.flush()
os._exit(0)
"""
needs_python = pytest.mark.skipif(OWN is None, reason="this machine has no Python that TensorFlow has wheels for")


def kiln(root: Path, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return warm.kiln("-C", str(root), *words, env=env, timeout=1800)


def copy_of_feedstock(folder: Path) -> Path:
    """Copy this feedstock, without what was built in it."""
    for part in ("recipe", ".ci_support"):
        shutil.copytree(ROOT / part, folder / part)
    shutil.copy2(ROOT / "conda-forge.yml", folder)
    return folder


@pytest.fixture(scope="session")
def report() -> dict[str, Any]:
    """This clone's rehearsal of the running Python's CPU config, made now or found."""
    return config_of(shared_inputs.own_rehearsal())


def config_of(run: dict[str, Any]) -> dict[str, Any]:
    """The only config of a run, with its channel."""
    assert run["rehearsal"] is True
    (config,) = run["configs"]
    return {**config, "channel": str(Path(config["packages"][0]["artifact"]["path"]).parents[1])}


@needs_python
def test_all_packages_are_built_and_pass_their_tests(report: dict[str, Any]) -> None:
    told = {package["artifact"]["name"]: package["tests"]["verdict"] for package in report["packages"]}
    assert told == dict.fromkeys(
        ("libtensorflow_framework", "libtensorflow_cc", "tensorflow-base", "tensorflow", "tensorflow-cpu"), "passed"
    )


@needs_python
def test_the_packages_metadata_is_that_of_the_rendered_recipe(report: dict[str, Any]) -> None:
    feedstock = recipe_feedstock.load(ROOT)
    rendered = pins.close_static_pins(render.render(feedstock, read_config(feedstock, report["config"])))
    paths = {package["artifact"]["name"]: Path(package["artifact"]["path"]) for package in report["packages"]}
    assert {output.name for output in rendered.outputs if not output.skip} - paths.keys() == {"libtensorflow"}
    for output in (output for output in rendered.outputs if output.name in paths):
        index = read_info_json(paths[output.name], "index.json")
        assert (index["version"], index["build"], index["build_number"], index["subdir"]) == (
            output.version,
            output.build_string,
            output.build_number,
            output.subdir,
        )
        assert index.get("track_features", "") == " ".join(output.track_features)
        assert [spec for spec in output.requirements.run if spec not in index["depends"]] == []
        assert index.get("constrains", []) == sorted(output.requirements.run_constrained)


@needs_python
def test_the_packages_require_the_c_library_and_the_processor_and_have_compiled_modules(
    report: dict[str, Any],
) -> None:
    paths = {package["artifact"]["name"]: Path(package["artifact"]["path"]) for package in report["packages"]}
    for name in ("libtensorflow_framework", "libtensorflow_cc", "tensorflow-base"):
        depends = read_info_json(paths[name], "index.json")["depends"]
        assert {"__glibc >=2.28,<3.0.a0", "_x86_64-microarch-level >=2"} <= set(depends)
    files = {entry["_path"] for entry in read_info_json(paths["tensorflow-base"], "paths.json")["paths"]}
    modules = {path for path in files if path.endswith(".py")}
    assert len([path for path in files if path.endswith(".pyc")]) == len(modules) > 1000


@needs_python
def test_what_the_wheel_lacks_is_said(report: dict[str, Any]) -> None:
    runs = json.loads(kiln(ROOT, "runs", "--all", "--json").stdout)  # other tests, or a user, may have rehearsed before
    built = [run["run"] for run in runs if run["rehearsal"] and run["configs"].get(report["config"]) == "done"]
    (first,) = json.loads(kiln(ROOT, "report", "--json", str(built[0])).stdout)["configs"]
    (step,) = (step for step in first["steps"] if step["title"] == "compare the outputs with upstream's wheel")
    assert step["notes"] == [
        "upstream's wheel has no libtensorflow.so: libtensorflow is not made",
        "upstream's wheel has no tensorflow::ClientSession: libtensorflow_cc is made without it",
    ]


@needs_python
def test_a_fresh_prefix_from_the_channel_computes(report: dict[str, Any], tmp_path: Path) -> None:
    prefix = tmp_path / "a prefix"
    channel = LocalChannel(root=Path(report["channel"])).url
    subprocess.run(
        (sys.executable, "-c", INSTALL, channel, prefix, tmp_path / "cache", "tensorflow"), cwd=ROOT, check=True
    )
    ran = subprocess.run((prefix / "bin" / "python", "-c", PRODUCT), capture_output=True, text=True, check=False)
    assert ran.stdout == "60.0\n", ran.stderr


@needs_python
def test_the_same_rehearsal_again_finds_everything(report: dict[str, Any]) -> None:
    with shared_inputs.turn("rehearsal"):
        ended = kiln(ROOT, "build", "--rehearse", "--json", report["config"])
    again = config_of(json.loads(ended.stdout))
    assert again["state"] == "cached"
    assert all(package["reused"] for package in again["packages"])
    assert [package["artifact"] for package in again["packages"]] == [item["artifact"] for item in report["packages"]]


@needs_python
def test_a_rehearsal_is_marked_and_refused_as_a_release(report: dict[str, Any], tmp_path: Path) -> None:
    paths = [package["artifact"]["path"] for package in report["packages"]]
    assert all(read_info_json(Path(path), "about.json")["extra"]["rehearsal"] is True for path in paths)
    assert (Path(report["channel"]) / "REHEARSAL.txt").is_file()
    refused = kiln(ROOT, "publish", *paths, "--to", str(tmp_path / "channel"))
    assert refused.returncode == ReleaseRefused.exit_code
    assert not (tmp_path / "channel").exists()


def link_wheels(report: dict[str, Any], feedstock: Path) -> Path:
    """Give a copy of the feedstock the wheels that a rehearsal of this clone has fetched."""
    store = feedstock / "build_artifacts" / "rehearsal" / "wheels"
    store.mkdir(parents=True)
    for wheel in (Path(report["channel"]).parents[1] / "wheels").glob("*.whl"):
        link_or_copy(wheel, store / wheel.name)
    return store


@needs_python
def test_a_tampered_wheel_is_refused_and_nothing_is_made_of_it(report: dict[str, Any], tmp_path: Path) -> None:
    feedstock = copy_of_feedstock(tmp_path)
    store = link_wheels(report, feedstock)
    victim = next(store.glob("gast-*.whl"))
    content = victim.read_bytes()
    victim.unlink()
    victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    ended = kiln(feedstock, "build", "--rehearse")
    assert ended.returncode == HashMismatch.exit_code
    assert victim.name in ended.stderr
    assert not list(feedstock.rglob("*.conda"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A feedstock whose build_artifacts is a file system of its own, too small to build in."""
    feedstock = copy_of_feedstock(tmp_path)
    with mounted(feedstock / "build_artifacts", "64m"):
        yield feedstock


@needs_python
def test_a_disk_that_is_too_small_is_reported_before_anything_is_fetched(small_disk: Path) -> None:
    ended = kiln(small_disk, "build", "--rehearse")
    assert ended.returncode == DiskFull.exit_code
    assert "are free there" in ended.stderr
    assert not list(small_disk.rglob("*.whl"))


@needs_python
def test_two_of_one_config_at_once_are_refused(tmp_path: Path) -> None:
    feedstock = copy_of_feedstock(tmp_path)
    config = cpu_config_for_python(recipe_feedstock.load(feedstock), PYTHON).name
    lock = feedstock / "build_artifacts" / "locks" / "rehearsals" / f"{config}.lock"
    lock.parent.mkdir(parents=True)
    holder = (
        "import sys; from pathlib import Path; from kiln.base.files import held_lock_file\n"
        "with held_lock_file(Path(sys.argv[1])): print(flush=True); input()"
    )
    argv = (sys.executable, "-c", holder, str(lock))
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"  # the lock is held
        ended = kiln(feedstock, "build", "--rehearse")
        process.communicate(b"\n")
    assert ended.returncode == AlreadyRunning.exit_code
    assert f"process {process.pid}" in ended.stderr


@needs_python
def test_without_a_python_nothing_is_fetched(tmp_path: Path) -> None:
    folders = (Path("/usr/bin"), Path("/usr/local/bin"))
    python = next(item for item in PYTHONS if not any((folder / f"python{item}").exists() for folder in folders))
    feedstock = copy_of_feedstock(tmp_path)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    words = (
        "build",
        "--rehearse",
        "--calling-python",
        "/usr/bin/perl",
        "--python-channel",
        "http://127.0.0.1:9/channel",
    )
    ended = kiln(feedstock, *words, cpu_config_for_python(recipe_feedstock.load(feedstock), python).name, env=env)
    assert ended.returncode == UnsupportedPython.exit_code, ended.stderr
    assert f"no usable Python {python} on this machine, and the download failed" in ended.stderr
    assert "\n  try: " in ended.stderr
    assert not [path for path in (feedstock / "build_artifacts").rglob("*") if path.suffix in {".whl", ".conda"}]


@needs_python
@pytest.mark.parametrize("executable", ["/usr/bin/perl", "/no/such/python3.11"])
def test_an_unsupported_python_is_refused(executable: str, tmp_path: Path) -> None:
    ended = kiln(copy_of_feedstock(tmp_path), "build", "--rehearse", "--python", executable)
    assert ended.returncode == UnsupportedPython.exit_code, ended.stderr
    assert executable in ended.stderr


def libraries(wheels: tuple[LockedWheel, ...], folder: Path, target: PackageTarget) -> Iterator[Path]:
    """Yield packages of the wheels' metadata: their files, gigabytes, decide nothing here."""
    for wheel in wheels:
        row = pypi.name_mapping(wheel.name)
        if row.layout is pypi.WheelLayout.LIBRARIES:
            own = row.exported_by == row.conda
            exports = library_run_exports(wheel.name, Version(wheel.version)) if own else {}
            facts = PackageMetadata(
                name=row.conda,
                version=wheel.version,
                build=target.cuda_tag,
                depends=target.cuda_requirements,
                run_exports=exports,
            )
            yield write_metadata_only_package(folder, facts)


@pytest.mark.parametrize("cuda", ["12.5", "12.9"])
def test_the_host_of_a_cuda_config_solves_in_a_rehearsals_channel(tmp_path: Path, cuda: str) -> None:
    wheels, target = plan_from_locks(python="3.12", cuda=cuda).dependencies, PackageTarget(python="3.12", cuda=cuda)
    (tmp_path / "made").mkdir()
    made = tmp_path / "made"
    dev_packages = (write_metadata_only_package(made, facts) for facts in cuda_metadata(wheels, target))
    packages = (*libraries(wheels, made, target), *dev_packages)
    channel = LocalChannel(root=tmp_path / "channel")
    channel.add((package, "linux-64") for package in packages)
    feedstock = recipe_feedstock.load(ROOT)
    names = (f"version{cuda}microarch_level2", "python3.12")
    config = next(config for config in matrix.configs(feedstock) if all(part in config.name for part in names))
    (framework,) = (
        output
        for output in pins.close_static_pins(render.render(feedstock, config)).outputs
        if output.name == "libtensorflow_framework"
    )
    host = [strict_rattler_spec(spec) for spec in framework.requirements.host]
    run = [strict_rattler_spec(spec) for spec in framework.requirements.run if not spec.startswith("__")]
    versions = {
        str(record.name.normalized): str(record.version) for record in solve([channel.url], host, virtual_packages={})
    }
    assert versions["cuda-version"] == cuda
    assert {
        "libcublas",
        "libcufft",
        "libcurand",
        "libcusolver",
        "libcusparse",
        "cuda-cudart",
        "nccl",
    } <= versions.keys()
    exported = [spec for wheel in wheels for spec in library_run_exports(wheel.name, Version(wheel.version))["weak"]]
    needed = [spec for spec in exported if spec.split()[0] in versions]
    assert solve([channel.url], [*run, *needed], virtual_packages={})


ENV = dict(os.environ)
# One pure with a console script, one compiled, one whose files stand in a .data folder's place, and pip itself.
SOME = ("charset-normalizer", "idna", "pip", "six", "wrapt")
STANDARD_LIBRARY = """
import bz2, ctypes, hashlib, json, lzma, sqlite3, ssl, sys, sysconfig, venv, zlib
import charset_normalizer, idna, six, wrapt
sqlite3.connect(":memory:").execute("select 1")
ssl.create_default_context()
print(json.dumps({
    "prefix": [sys.prefix, sys.exec_prefix, sys.base_prefix],
    "path": [entry for entry in sys.path if entry],
    "paths": list(sysconfig.get_paths().values()),
    "modules": [module.__file__ for module in (charset_normalizer, idna, six, wrapt, ssl)],
}))
"""


def some(python: str) -> tuple[LockedWheel, ...]:
    return tuple(wheel for wheel in plan_from_locks(python=python).dependencies if wheel.name in SOME)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


def interpreters() -> list[Path]:
    """The interpreters of this machine, each once: one per version and the system's."""
    result = {}
    for python in PYTHONS:
        for first in ([], [Path(f"/usr/bin/python{python}")]):
            try:
                interpreter = python_search.find_interpreter(python, first=first, env=ENV)
            except UnsupportedPython:
                continue
            result[interpreter.executable] = interpreter.executable
    return list(result)


def installed_prefix(packages: Sequence[Path], folder: Path) -> Path:
    """Put packages into a channel, and from there into a fresh prefix."""
    channel = LocalChannel(root=folder / "channel")
    channel.repair_index()
    channel.add((package, SUBDIR) for package in packages)
    specs = [package.name.rsplit("-", 2)[0] for package in packages]
    argv = [sys.executable, "-c", INSTALL, channel.url, str(folder / "prefix"), str(folder / "cache"), *specs]
    subprocess.run(argv, check=True, cwd=ROOT)
    return folder / "prefix"


def ran(prefix: Path, *words: str) -> str:
    """Run a program of a prefix with nothing of this environment; return what it says."""
    done = subprocess.run(
        [prefix / "bin" / words[0], *words[1:]],
        env={"PATH": "/usr/bin:/bin", "HOME": ENV["HOME"], "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=prefix,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("executable", interpreters(), ids=str)
def test_an_interpreter_and_real_wheels_run_in_a_fresh_prefix(executable: Path, store: Path, tmp_path: Path) -> None:
    interpreter = python_search.probe_interpreter(executable, env=ENV)
    chosen = some(interpreter.minor_version)
    paths = wheel_download.fetch_wheels(chosen, store, env=ENV)
    made = write_python_packages(interpreter, tmp_path / "made", env=ENV)
    fetched = [(path, wheel.sha256) for path, wheel in zip(paths, chosen, strict=True)]
    made += convert_wheels(fetched, tmp_path / "made", PackageTarget(python=interpreter.minor_version))
    prefix = installed_prefix(made, tmp_path)

    answer: dict[str, Any] = json.loads(ran(prefix, "python", "-c", STANDARD_LIBRARY))
    assert answer["prefix"] == [str(prefix)] * 3
    for path in (*answer["path"], *answer["paths"], *answer["modules"]):
        assert Path(path).is_relative_to(prefix), path
    assert "lib/python" + interpreter.minor_version + "/site-packages" in " ".join(answer["path"])
    assert ran(prefix, "python", "-m", "pip", "check") == "No broken requirements found.\n"
    assert str(prefix) in ran(prefix, "pip", "--version")
    assert ran(prefix, "normalizer", "--version").startswith("Charset-Normalizer")


def test_without_a_network_the_error_says_so_without_a_password(tmp_path: Path) -> None:
    (six,) = (wheel for wheel in some("3.11") if wheel.name == "six")
    lines: list[str] = []
    env = {
        "PATH": ENV["PATH"],
        "HOME": ENV["HOME"],
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://user:hunter2@127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
    }
    with pytest.raises(DownloadFailed, match="pip could not fetch") as caught:
        wheel_download.fetch_wheels([six], tmp_path, env=env, log=tmp_path / "log", on_line=lines.append)
    assert "refused" in caught.value.why
    assert "hunter2" not in str(caught.value) + "".join(lines) + (tmp_path / "log").read_text()
