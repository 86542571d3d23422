"""All but builds runs without Unix: the commands, in processes that look like Windows to kiln.

See tests/windows_stand_in/sitecustomize.py for what is taken away, and for what remains of this system.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.base.errors import UnsafeTemplate, UnsupportedPlatform
from tests import waiting

pytestmark = [pytest.mark.slow("commands run twice"), pytest.mark.sampled]

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests" / "windows_stand_in"
SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"
PINNING = str(ROOT / "tests" / "fixtures" / "pinning" / "conda_build_config.yaml")
FEEDSTOCKS = ROOT / "tests" / "fixtures" / "feedstocks"


def python(*words: str, cwd: Path = ROOT, windows: bool = True) -> subprocess.CompletedProcess[str]:
    """Run this Python, as on Windows or as it is."""
    paths = (str(STAND_IN), str(ROOT)) if windows else (str(ROOT),)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    argv = (sys.executable, *words)
    return subprocess.run(
        argv, cwd=cwd, env=environment, text=True, capture_output=True, check=False, timeout=waiting.CEILING
    )


def done(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 0, ended.stderr + ended.stdout
    return ended.stdout


def kiln(root: Path, *words: str, windows: bool = True) -> str:
    return done(python("-m", "kiln", "-C", str(root), *words, windows=windows))


def test_the_stand_in_takes_unix_away() -> None:
    code = """
import importlib, os, signal, sys
for name in ("fcntl", "pwd", "grp", "resource", "termios", "pty"):
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    sys.exit(name)
assert not any(hasattr(os, name) for name in ("fork", "getuid", "chown", "mkfifo", "statvfs", "O_NOFOLLOW", "pread"))
assert not hasattr(signal, "SIGKILL") and not hasattr(signal, "SIGHUP")
try:
    open("/proc/self/stat")
except FileNotFoundError:
    pass
else:
    sys.exit("/proc")
from kiln.base import limits
from kiln.base.system import files as file_locks, processes
assert limits._limited.__module__ == "kiln.base.limits.in_process"
assert file_locks.msvcrt.__name__ == "msvcrt"
"""
    done(python("-c", code))


@pytest.fixture
def feedstock(tmp_path: Path) -> Path:
    """Return a copy of the small feedstock."""
    return Path(shutil.copytree(SMALL, tmp_path / "small", ignore=shutil.ignore_patterns("build_artifacts")))


@pytest.mark.parametrize("name", ["noarch", "selectors", "zips", "macos", "textual"])
def test_matrix_and_rerender_are_the_same_as_here(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FEEDSTOCKS / name, tmp_path / name)
    unix, windows = (kiln(folder, "matrix", "-e", PINNING, "--json", windows=way) for way in (False, True))
    assert json.loads(windows) == json.loads(unix)
    kiln(folder, "rerender", "-e", PINNING, windows=False)
    written = {file.name: file.read_bytes() for file in (folder / ".ci_support").glob("*.yaml")}
    for file_name in written:
        (folder / ".ci_support" / file_name).unlink()
    kiln(folder, "rerender", "-e", PINNING)
    assert {file.name: file.read_bytes() for file in (folder / ".ci_support").glob("*.yaml")} == written
    assert "up to date" in kiln(folder, "rerender", "--check", "-e", PINNING)


def test_render_lint_convert_and_doctor_are_the_same_as_here(feedstock: Path) -> None:
    for words in (("render", "--json"), ("convert", "--print"), ("doctor", "--tf", "2.21", "--json")):
        unix, windows = (python("-m", "kiln", "-C", str(feedstock), *words, windows=way) for way in (False, True))
        assert (windows.returncode, windows.stdout, windows.stderr) == (unix.returncode, unix.stdout, unix.stderr)
        assert unix.stdout or unix.stderr
    unix, windows = (python("-m", "kiln", "-C", str(feedstock), "lint", windows=way) for way in (False, True))
    assert (windows.returncode, windows.stdout) == (unix.returncode, unix.stdout)


def test_bump_and_init_write_what_they_write_here(feedstock: Path, tmp_path: Path) -> None:
    before = (feedstock / "recipe" / "meta.yaml").read_bytes()
    kiln(feedstock, "bump", "--build")
    bumped = (feedstock / "recipe" / "meta.yaml").read_bytes()
    assert bumped != before
    assert len(bumped.splitlines()) == len(before.splitlines())
    trees = []
    for windows in (False, True):
        place = tmp_path / str(windows)
        place.mkdir()
        words = ("init", "new", "--maintainer", "me", "--no-pinning", "--kiln", str(ROOT))
        kiln(place, *words, windows=windows)
        trees.append({str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()})
    assert trees[1] == trees[0]
    assert "new-feedstock/recipe/recipe.yaml" in trees[0]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    """Return the small feedstock with one config built on this system, and the options that leave out the others."""
    root = tmp_path_factory.mktemp("built") / "small"
    shutil.copytree(SMALL, root, ignore=shutil.ignore_patterns("build_artifacts"))
    meta, script = root / "recipe" / "meta.yaml", root / "recipe" / "build.sh"
    meta.write_text(meta.read_text().replace("  summary:", "  license_file: LICENCE\n  summary:"))
    script.write_text(f"{script.read_text()}echo 'do as you like' >LICENCE\n")
    (root / "outputs.txt").write_text("small\nlibsmall\n")
    configs = sorted(file.stem for file in (root / ".ci_support").glob("*.yaml"))
    kiln(root, "build", configs[2], "--container", "none", windows=False)
    return root, tuple(word for config in configs if config != configs[2] for word in ("--partial", config))


def test_packages_are_published_verified_and_installed(built: tuple[Path, tuple[str, ...]], tmp_path: Path) -> None:
    root, partial = built
    channel, prefix = tmp_path / "channel", tmp_path / "prefix"
    published = kiln(root, "publish", "--to", str(channel), *partial, "--json")
    assert len(json.loads(published)["published"]) == 2
    assert not [path for path in channel.rglob("*") if path.is_symlink()], "Windows makes no links for most users"
    packages = sorted(channel.glob("linux-64/*.conda"))
    assert len(packages) == 2
    for package in packages:
        kiln(root, "verify", str(package))
        kiln(root, "verify", str(package), windows=False)
    words = ("--prefix", str(prefix), "--from", str(channel), "--cache", str(tmp_path / "cache"))
    kiln(root, "install", "libsmall", *words)
    assert list((prefix / "conda-meta").glob("libsmall-*.json"))
    assert "up to date" in kiln(root, "install", "libsmall", *words)
    assert not list(tmp_path.rglob("*.part*")), "no lock and no half-written file stays"
    kiln(root, "publish", "--to", str(channel), "--yank", packages[0].name)
    kiln(root, "publish", "--to", str(channel), "--reindex")
    kiln(root, "publish", "--to", str(channel), "--reindex", windows=False)  # which puts links in their place again
    kiln(root, "install", "libsmall", *words, windows=False)


def test_a_build_is_refused_with_the_reason(feedstock: Path) -> None:
    for words in (("--all",), ("--all", "--container", "none"), ("--all", "--rehearse")):
        ended = python("-m", "kiln", "-C", str(feedstock), "build", *words)
        assert ended.returncode == UnsupportedPlatform.exit_code, ended.stderr
        assert "win-64" in ended.stderr


def test_a_recipe_that_needs_too_much_work_is_refused(feedstock: Path) -> None:
    meta = feedstock / "recipe" / "meta.yaml"
    text = meta.read_text()
    meta.write_text("{% set long = 'x' * 10 ** 10 %}\n" + text)
    ended = python("-m", "kiln", "-C", str(feedstock), "matrix", "--no-pinning")
    assert ended.returncode == UnsafeTemplate.exit_code, ended.stderr


def test_of_two_processes_one_holds_a_lock(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from kiln.base import files, locks as folder_lock
from kiln.base.errors import AlreadyRunning
import subprocess
place = Path(sys.argv[1])
if len(sys.argv) == 2:
    with files.held_lock_file(place / "lock"), folder_lock.exclusive_folder_lock(place / "made"):
        ended = subprocess.run((sys.executable, "-c", sys.orig_argv[2], str(place), "second"))
        assert ended.returncode == 0
    with files.held_lock_file(place / "lock"), folder_lock.exclusive_folder_lock(place / "made"):
        pass
    assert [path.name for path in place.iterdir()] == ["lock"]
else:
    for lock in (files.held_lock_file(place / "lock"), folder_lock.exclusive_folder_lock(place / "made")):
        try:
            with lock:
                sys.exit("it is not held")
        except AlreadyRunning as error:
            print(error)
"""
    assert done(python("-c", code, str(tmp_path))).count("holds") == 2
