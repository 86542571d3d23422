"""A hostile recipe, built in containers: the files of the machine that it can read and write, and what it leaves there.

Its script tries everything at each place where recipes run scripts, and prints what it could do; the files outside are
compared, byte for byte, with those from before.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base import files
from kiln.base.errors import BuildFailed, RecipeFault
from kiln.base.system.machine import PACKAGE_ROOT
from kiln.conda.channel import LocalChannel
from kiln.state.results import ConfigState
from tests.integration.matrix.helpers import (
    BASE,
    CPU_311,
    SMALL,
    kiln,
    packages,
    replace,
    report,
    states,
    usable,
    words,
)
from tests.packages import release_package

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow("a feedstock is built in a container"), pytest.mark.sampled]

INSIDE = "/home/conda/feedstock_root"
TOKEN = "https://user:token-of-ours@example.org/feedstock"

# Everything that no build has to do with, relative to the feedstock; a new file, or one that is there.
NOT_TO_BE_WRITTEN = (
    *("recipe/meta.yaml", "recipe/new", ".ci_support/new.yaml", f".ci_support/{CPU_311}.yaml", "conda-forge.yml"),
    *(".git/config", ".git/hooks/post-checkout", ".venv/new", "kiln/__init__.py", "build-locally.py", "new"),
    *("build_artifacts/ledger.sqlite", "build_artifacts/new", "build_artifacts/linux-64/new.conda"),
    *("build_artifacts/linux-64/theirs.conda", "build_artifacts/locks/new", "build_artifacts/logs/new"),
    *("build_artifacts/work/other/secret", "build_artifacts/work/new", "build_artifacts/cache/new"),
)
NOT_TO_BE_READ = (
    *(".git/config", "build_artifacts/ledger.sqlite", "build_artifacts/work/other/secret"),
    *("build_artifacts/linux-64/theirs.conda", "private", ".venv/private"),
)

# Reads what it can, then writes what it can, of which much is the container's own; fails never.
ATTACK = """
attack() {{
    for root in {inside} {outside}; do
        for path in {read}; do
            if grep -aqE 'of others|token-of-ours|SQLite format' "$root/$path" 2>/dev/null; then
                echo "HARM: $1 reads $path"
            fi
        done
    done
    for root in {inside} {outside}; do
        for path in {written}; do
            (mkdir -p "$(dirname "$root/$path")"; echo harm >>"$root/$path") 2>/dev/null || true
        done
    done
    for path in /opt/kiln-package/kiln/__init__.py /home/conda/recipe_root/meta.yaml {kiln_folder}/kiln/__init__.py; do
        (echo harm >>"$path") 2>/dev/null || true
    done
    echo "attacked by $1"
}}
"""


@pytest.fixture
def feedstock(tmp_path: Path) -> Path:
    """A feedstock under git, next to somebody's folder, with files of other builds and people in it."""
    root = Path(shutil.copytree(SMALL, tmp_path / "feedstock"))
    subprocess.run(("git", "init", "-q", root), check=True)
    subprocess.run(("git", "-C", root, "remote", "add", "origin", TOKEN), check=True)
    for name in ("build_artifacts/work/other/secret", "build_artifacts/linux-64/theirs.conda", "private"):
        files.write_text(root / name, "of others\n")
    for name in (".venv/private", "kiln/__init__.py", "build-locally.py"):
        files.write_text(root / name, "of others\n")
    files.write_text(tmp_path / "victim" / "over.txt", "as it was\n")
    return root


@pytest.fixture(params=["docker", pytest.param("podman", marks=pytest.mark.sampled)])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn."""
    return usable(request.param)


@pytest.fixture(params=["with the engine", "apart"])
def hostile(feedstock: Path, request: pytest.FixtureRequest) -> Path:
    """The feedstock with the attack in its build scripts and its test, run with the engine or apart from it."""
    folders = {"inside": INSIDE, "outside": feedstock, "kiln_folder": PACKAGE_ROOT}
    attack = ATTACK.format(written=" ".join(NOT_TO_BE_WRITTEN), read=" ".join(NOT_TO_BE_READ), **folders)
    for script, first in (("build.sh", "mkdir"), ("install-app.sh", "mkdir"), ("check.sh", "test ")):
        replace(feedstock, script, first, f"{attack}attack {script}\n{first}")
    if request.param == "apart":
        replace(feedstock, "meta.yaml", "extra:\n", "extra:\n  network: nothing\n")
    return feedstock


def snapshot(folder: Path, without: str = "") -> dict[str, tuple[int, str]]:
    """The mode and the content of everything below a folder, but for what is in folders of a name."""
    result = {}
    for path in sorted(path for path in folder.rglob("*") if without not in path.parts):
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else files.sha256(path) if path.is_file() else ""
        result[str(path.relative_to(folder))] = (stat.S_IMODE(status.st_mode), content)
    return result


# What kiln itself changes below build_artifacts while it builds.
CHANGING = (
    "linux-64",
    "noarch",
    "work",
    "logs",
    "locks",
    "cache",
    "container-cache",
    "compile-cache",
    ".tmp",
    ".reserve",
)
KILNS_OWN = (*CHANGING, ".gitignore", "ledger.sqlite", "finished", "conda-forge-build-done-")


def of_others(root: Path) -> dict[str, tuple[int, str]]:
    """Return the files that no build may change: those around build_artifacts, kiln's, and those of others in it."""
    made = str(root.relative_to(root.parent) / "build_artifacts") + "/"
    kilns = snapshot(PACKAGE_ROOT / "kiln", without="__pycache__")  # where other tests' processes write
    everything = {**snapshot(root.parent), **{f"kiln/{name}": result for name, result in kilns.items()}}
    return {
        name: result
        for name, result in everything.items()
        if not name.startswith(made)
        or (name.endswith(("/new", "/new.conda", "/theirs.conda", "/other/secret")) and f"work/{CPU_311}/" not in name)
        or not name.removeprefix(made).startswith(KILNS_OWN)
    }


def log_of(root: Path) -> str:
    (config,) = report(root).configs
    assert config.log is not None
    return config.log.read_text()


def harm(log: str) -> set[str]:
    return {line.partition("HARM: ")[2] for line in log.splitlines() if "HARM: " in line and "echo" not in line}


def test_a_script_writes_and_reads_nothing_that_is_not_its_own(hostile: Path, engine: str) -> None:
    before = of_others(hostile)
    ended = kiln(hostile, CPU_311, "--container", engine)
    assert ended.returncode == 0, ended.stderr
    log = log_of(hostile)
    assert harm(log) == set()
    for script in ("build.sh", "install-app.sh", "check.sh"):
        assert f"attacked by {script}" in log
    after = of_others(hostile)
    assert after.keys() - before.keys() == set()
    assert {name for name in before if after.get(name) != before[name]} == set()
    assert not (hostile / "build_artifacts" / "ledger.sqlite").read_bytes().endswith(b"harm\n")
    assert packages(hostile) == {"libsmall-1.2-cpu__0.conda", "small-1.2-cpu_py311h88fc6ca_0.conda", "theirs.conda"}


def test_links_in_the_places_of_what_the_host_opens_lead_it_nowhere(
    feedstock: Path, engine: str, tmp_path: Path
) -> None:
    """The host rings a bell, a pipe, when all scripts are over, and makes a file that says so."""
    replace(feedstock, "meta.yaml", "extra:\n", "extra:\n  network: nothing\n")
    victim = tmp_path / "victim"
    (victim / "bell").write_text("as it was\n")
    before = snapshot(victim)
    queue = f"{INSIDE}/build_artifacts/work/{CPU_311}/scripts"
    plant = f"ln -sf {victim}/bell {queue}/bell && ln -s {victim}/over {queue}/over\n"
    replace(feedstock, "check.sh", "test ", f"{plant}test ")
    ended = kiln(feedstock, CPU_311, "--container", engine)
    assert snapshot(victim) == before
    assert ended.returncode == 0, ended.stderr


def test_a_link_in_a_packages_place_is_not_put_into_the_channel(feedstock: Path, engine: str, tmp_path: Path) -> None:
    """The last script to run is a test's, which finds the packages finished."""
    package = "small-1.2-cpu_py311*.conda"
    swap = f"for it in {INSIDE}/build_artifacts/work/*/channel/linux-64/{package}; do ln -sf /etc/passwd $it; done\n"
    replace(feedstock, "check.sh", "test ", f"{swap}test ")
    ended = kiln(feedstock, CPU_311, "--container", engine)
    assert ended.returncode == BuildFailed.exit_code, ended.stderr
    assert states(feedstock) == {CPU_311: ConfigState.FAILED}
    assert packages(feedstock) == {"theirs.conda"}


def test_another_package_in_a_packages_place_is_not_put_into_the_channel(feedstock: Path, engine: str) -> None:
    place = f"{INSIDE}/build_artifacts/work/*/channel/linux-64"
    swap = f"(cd {place}; for it in small-*.conda; do cp libsmall-*.conda $it; done)\n"
    replace(feedstock, "check.sh", "test ", f"{swap}test ")
    ended = kiln(feedstock, CPU_311, "--container", engine)
    assert ended.returncode == BuildFailed.exit_code, ended.stderr
    assert "is not the package that was built and tested" in ended.stderr
    assert packages(feedstock) == {"theirs.conda"}


def test_the_host_does_not_reuse_a_containers_folder(feedstock: Path, engine: str) -> None:
    """The host would run what a script has put in the place of a finished compile."""
    replace(feedstock, "install-app.sh", "mkdir", "test -e /nowhere && mkdir")
    assert kiln(feedstock, CPU_311, "--container", engine, "--keep-failed").returncode == BuildFailed.exit_code
    work = feedstock / "build_artifacts" / "work" / CPU_311
    (work / "planted").touch()
    assert kiln(feedstock, CPU_311, "--container", "none").returncode == BuildFailed.exit_code
    assert not (work / "planted").exists()
    (work / "of the host").touch()
    assert kiln(feedstock, CPU_311, "--container", engine).returncode == BuildFailed.exit_code
    assert not (work / "of the host").exists()


@pytest.mark.parametrize("git", ["folder", "file"])
def test_sources_next_to_the_recipe_are_visible_and_git_is_not(feedstock: Path, engine: str, git: str) -> None:
    """As in the repository of a project: the recipe takes the whole of it; .git is a file in worktrees."""
    if git == "file":
        (feedstock / ".git").rename(feedstock.parent / "git")
        (feedstock / ".git").write_text(f"gitdir: {feedstock.parent / 'git'}\n")
    shutil.move(feedstock / "recipe" / "src" / "greeting.txt", feedstock)
    replace(feedstock, "meta.yaml", "path: src", "path: ..")
    replace(feedstock, "build.sh", "mkdir", "test ! -e .git && test ! -e build_artifacts && test -e private\nmkdir")
    ended = kiln(feedstock, CPU_311, "--container", engine)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("path", ["../../victim", "../.git", "link"])
def test_sources_outside_of_the_feedstock_are_refused(feedstock: Path, path: str) -> None:
    (feedstock / "recipe" / "link").symlink_to("../../victim")
    replace(feedstock, "meta.yaml", "path: src", f"path: {path}")
    ended = kiln(feedstock, CPU_311, "--container", usable("docker"))
    assert ended.returncode == RecipeFault.exit_code, ended.stderr
    assert "which containers do not see" in ended.stderr


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    """A channel in a folder outside of the feedstock, with one package, next to somebody's file."""
    folder = tmp_path / "a channel"
    release_package(folder / "noarch", "tool")
    LocalChannel(root=folder).repair_index()
    (folder / "private").write_text("of others\n")
    return folder


def test_a_channel_in_a_folder_outside_of_the_feedstock_is_seen_and_only_read(
    feedstock: Path, engine: str, channel: Path
) -> None:
    config = feedstock / ".ci_support" / f"{CPU_311}.yaml"
    config.write_text(f"channel_sources:\n- {channel.as_uri()}\n{config.read_text()}")
    uses = 'ls "$PREFIX"/conda-meta/tool-1-0.json && test ! -e "{0}/private" && ! touch "{0}/noarch/new" 2>/dev/null\n'
    replace(feedstock, "install-app.sh", "mkdir", f"{uses.format(channel)}mkdir")
    needs = "    requirements:\n      host:\n        - tool\n      run:\n"
    replace(feedstock, "meta.yaml", "    requirements:\n      run:\n", needs)
    before = snapshot(channel)
    ended = kiln(feedstock, CPU_311, "--container", engine)
    assert ended.returncode == 0, ended.stderr
    assert snapshot(channel) == before


@pytest.fixture
def conda_build_image() -> Iterator[str]:
    """An image with a program in conda-build's place that runs the recipe's script, as conda-build would."""
    docker = usable("docker")
    tag = f"localhost/kiln-test-conda-build:{os.getpid()}"
    program = "#!/bin/bash\\nPKG_NAME=small-split PKG_VERSION=1.2 bash $1/build.sh\\n"
    made = subprocess.run(
        (
            docker,
            "run",
            "--detach",
            BASE,
            "bash",
            "-c",
            f"printf '{program}' >/usr/bin/conda-build; chmod +x /usr/bin/*",
        ),
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    try:
        subprocess.run((docker, "wait", made), check=True, capture_output=True)
        subprocess.run((docker, "commit", made, tag), check=True, capture_output=True)
    finally:
        subprocess.run((docker, "rm", "--force", made), check=True, capture_output=True)
    yield tag
    subprocess.run((docker, "rmi", "--force", tag), check=True, capture_output=True)


@pytest.mark.parametrize("hostile", ["with the engine"], indirect=True)
def test_a_script_of_another_engine_sees_no_more(hostile: Path, conda_build_image: str) -> None:
    """No image with conda-build can be had here: a program in its place shows what the container sees."""
    before = of_others(hostile)
    ended = kiln(hostile, CPU_311, "--container", "docker", "--engine", "conda-build", DOCKER_IMAGE=conda_build_image)
    log = log_of(hostile)
    assert "attacked by build.sh" in log, ended.stderr
    assert harm(log) == set()
    assert of_others(hostile) == before


def test_a_debug_shell_sees_no_more(hostile: Path) -> None:
    before = of_others(hostile)
    _, begins, attack = (hostile / "recipe" / "build.sh").read_text().partition("attack() {")
    attack = begins + attack.partition("attack build.sh")[0]
    more = (CPU_311, "--container", usable("docker"), "--debug", "--output-id", "small")
    ended = subprocess.run(
        words(hostile, *more),
        cwd=PACKAGE_ROOT,
        input=f"{attack}\nattack debug\n",
        text=True,
        capture_output=True,
        check=False,
    )
    assert "attacked by debug" in ended.stdout, ended.stderr
    assert harm(ended.stdout) == set()
    assert of_others(hostile) == before


def test_forged_messages_of_a_script_are_ignored(feedstock: Path, engine: str) -> None:
    """A message of the building process's, written by a script to where that writes."""
    said = json.dumps({"kind": "hello", "pid": 1})
    replace(feedstock, "build.sh", "mkdir", f"printf '\\036%s\\n' '{said}' >/proc/1/fd/1 || true\nmkdir")
    ended = kiln(feedstock, CPU_311, "--container", engine)
    assert ended.returncode == 0, ended.stderr
