"""Real wheels and real interpreters become packages that install into a fresh prefix and run there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import DownloadFailed, HashMismatch, UnsupportedPython
from kiln.build.rehearsal import python_search, wheel_download
from kiln.build.rehearsal.packages import PackageTarget, convert_wheels
from kiln.build.rehearsal.python_package import write_python_packages
from kiln.build.rehearsal.wheel_download import PYTHONS, plan_from_locks
from kiln.build.rehearsal.wheels import LockedWheel
from kiln.conda.channel import LocalChannel
from kiln.conda.package_writer import SUBDIR

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [pytest.mark.slow("wheels are fetched, packaged and installed"), pytest.mark.sampled]

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


CONVERT = """
import sys
from pathlib import Path
from kiln.build.rehearsal.packages import PackageTarget, convert_wheel
convert_wheel(Path(sys.argv[1]), "0" * 64, Path(sys.argv[2]), PackageTarget(python="3.11"))
"""
ROOT = Path(__file__).parents[2]


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


def installed(packages: Sequence[Path], folder: Path) -> Path:
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
    prefix = installed(made, tmp_path)

    answer: dict[str, Any] = json.loads(ran(prefix, "python", "-c", STANDARD_LIBRARY))
    assert answer["prefix"] == [str(prefix)] * 3
    for path in (*answer["path"], *answer["paths"], *answer["modules"]):
        assert Path(path).is_relative_to(prefix), path
    assert "lib/python" + interpreter.minor_version + "/site-packages" in " ".join(answer["path"])
    assert ran(prefix, "python", "-m", "pip", "check") == "No broken requirements found.\n"
    assert str(prefix) in ran(prefix, "pip", "--version")
    assert ran(prefix, "normalizer", "--version").startswith("Charset-Normalizer")


SYSTEM = [path for path in interpreters() if path.parent == Path("/usr/bin")]


@pytest.mark.parametrize("executable", SYSTEM, ids=str)
def test_a_virtual_environment_of_the_systems_python_answers_as_that_does(executable: Path, tmp_path: Path) -> None:
    subprocess.run((executable, "-m", "venv", "--without-pip", tmp_path / "v"), check=True)
    assert python_search.probe_interpreter(
        tmp_path / "v" / "bin" / "python", env=ENV
    ) == python_search.probe_interpreter(executable, env=ENV)


def test_a_second_run_fetches_and_makes_nothing(store: Path, tmp_path: Path) -> None:
    python = PYTHONS[-1]
    chosen = some(python)
    lines: list[str] = []
    paths = wheel_download.fetch_wheels(chosen, store, env=ENV)
    assert wheel_download.fetch_wheels(chosen, store, env=ENV, on_line=lines.append) == paths
    assert lines == []
    fetched = [(path, wheel.sha256) for path, wheel in zip(paths, chosen, strict=True)]
    first = convert_wheels(fetched, tmp_path, PackageTarget(python=python))
    inodes = [package.stat().st_ino for package in first]
    assert convert_wheels(fetched, tmp_path, PackageTarget(python=python)) == first
    assert [package.stat().st_ino for package in first] == inodes


def test_a_killed_conversion_leaves_nothing_under_a_final_name(tmp_path: Path) -> None:
    wheel, made = tmp_path / "big-1-py3-none-any.whl", tmp_path / "made"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("big/data", os.urandom(200_000_000))
        archive.writestr("big-1.dist-info/METADATA", "Name: big\nVersion: 1\n")
        archive.writestr("big-1.dist-info/WHEEL", "Wheel-Version: 1.0\n")
    work = [sys.executable, "-c", CONVERT, str(wheel), str(made)]
    how: int | None = None
    while how != -signal.SIGKILL:  # a busy machine may let it end before this process is awake to kill it
        shutil.rmtree(made, ignore_errors=True)
        with subprocess.Popen(work, cwd=ROOT) as process:
            while not list(made.glob(".big*.part")) and process.poll() is None:
                time.sleep(0.005)
            process.kill()
        how = process.returncode
        assert how in {0, -signal.SIGKILL}
    assert list(made.glob("*.conda")) == []
    subprocess.run(work, cwd=ROOT, check=True)
    assert [package.name.partition("-py")[0] for package in made.glob("*.conda")] == ["big-1"]


def test_pip_refuses_a_wheel_whose_hash_differs(tmp_path: Path) -> None:
    (six,) = (wheel for wheel in some("3.11") if wheel.name == "six")
    other = LockedWheel(name="six", version=six.version, file=six.file, size=1, sha256="a" * 64, pythons=six.pythons)
    with pytest.raises(HashMismatch, match=six.file) as caught:
        wheel_download.fetch_wheels([other], tmp_path, env=ENV)
    assert six.sha256 in caught.value.why
    assert list(tmp_path.glob("*.whl")) == []


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
