"""Runs of the fleet on workers that are containers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BuildFailed, DiskFull, Interrupted, MachinesUnknown, UnsupportedPython
from kiln.fleet.model import FleetRun, JobState, WorkerState
from kiln.image import worker as image_worker
from kiln.state.results import ConfigState
from tests import remote_cache
from tests.integration.fleet.helpers import (
    CONFIGS,
    HELD,
    PLANTED,
    ROOT,
    assert_given_back,
    assert_whole,
    building,
    busy,
    containers,
    docker,
    hold,
    ledgered,
    let_go,
    report,
    words,
)
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


CUDA_311, CUDA_312, CPU_311, CPU_312 = CONFIGS
USE_CACHE = """
if [ -n "${BAZEL_REMOTE_CACHE:-}" ]; then
    entry=$BAZEL_REMOTE_CACHE/ac/$(printf %s "$cuda_compiler_version" | sha256sum | cut -c-64)
    if curl --silent --fail --connect-timeout 20 "$entry" | cmp - dist/small.txt; then
        echo "=== found in the cache"
    elif curl --silent --fail --connect-timeout 20 --upload-file dist/small.txt "$entry"; then
        echo "=== put into the cache"
    fi
fi
"""
# Once, from this computer, which is not a worker of the run: 28 is curl's word for no answer in time.
KNOCK = """
here=$(dirname "$0")/..
known=$(echo "$here"/small-feedstock/build_artifacts/fleet/*/cache.json)
if [ -e "$known" ] && mkdir "$here/knocking" 2>/dev/null; then
    curl --silent --max-time 3 "$(cut -d'"' -f4 "$known")"
    echo "$?" >"$here/knocked"
fi
"""
FIRST = {"no CUDA · interpreter 3.11", "CUDA 12.9 · interpreter 3.11"}  # as they are shown
pytestmark = [
    pytest.mark.slow("a whole run of the fleet: machines are made, prepared, built on and removed"),
    pytest.mark.needs("docker", "ssh", "ssh-keygen", "rsync", "nginx"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason=f"{UnsupportedPython.__name__}: Ansible needs Python 3.11"),
]


@pytest.fixture
def small_disk(small: Path) -> Iterator[Path]:
    """The small feedstock with its build_artifacts on a disk of their own, where one can be mounted for docker, too."""
    disk = small / "build_artifacts"
    disk.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=160m", "none", str(disk))
    mounted = not subprocess.run(mount, capture_output=True, check=False).returncode
    try:
        if mounted and not docker_sees(disk):
            subprocess.run(("umount", disk), check=True)
            mounted = False
        yield small
    finally:
        left = containers(small)
        if left:
            docker("rm", "--force", "--volumes", *left)
        if mounted:
            subprocess.run(("umount", "--lazy", disk), check=True)


def docker_sees(folder: Path) -> bool:
    """Return whether docker's own processes see the mounts of this process."""
    (folder / "seen").touch()
    tag = image_worker.worker_recipe("bookworm").tag
    look = ("docker", "run", "--rm", "--pull=never", "--entrypoint=test", f"--volume={folder}:/disk:ro", tag)
    return not subprocess.run((*look, "-e", "/disk/seen"), capture_output=True, check=False).returncode


def fill(disk: Path) -> Path:
    """Leave not a byte on a disk, if it is one of its own; returns what took them."""
    filler = disk / "filler"
    if not disk.is_mount():
        return filler
    filling = subprocess.run(("dd", "if=/dev/zero", f"of={filler}", "bs=64k"), capture_output=True, check=False)
    assert b"No space left" in filling.stderr
    return filler


def run_words(root: Path, *more: str) -> tuple[str, ...]:
    common = ("--provider", "local", "--all", "--workers", "2", "--container", "none", "--poll", "1s")
    return words(root, "run", *common, *more)


def with_cache(root: Path) -> tuple[str, ...]:
    """Let compiles use the run's cache, as Bazel would; returns the options for a machine that holds one, of nginx."""
    script = root / "recipe" / "build.sh"
    script.write_text(script.read_text() + USE_CACHE)
    told = root.parent / "cache.json"
    told.write_text(json.dumps(remote_cache.root_file_system(root.parent / "nginx.tar")))
    return ("--cache", "small", "--vars", str(told))


def variables(path: Path | None = None, **more: str) -> dict[str, str]:
    before = {} if path is None else {"PATH": f"{path}:{os.environ['PATH']}"}
    return {**os.environ, **before, **more}


def states(root: Path) -> dict[str, ConfigState]:
    return {config.config: config.state for config in report(root).configs}


@contextmanager
def started(root: Path, *more: str, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run ``kiln fleet run`` during the test; its output goes to a file, so that it never waits for a reader."""
    said = root.parent / "said.txt"
    with (
        said.open("a") as file,
        subprocess.Popen(
            # It inherits SIGINT ignored where the tests were started with `&` or by nohup, and would ignore it.
            ("env", "--default-signal=INT", *run_words(root, *more)),
            cwd=ROOT,
            text=True,
            stderr=file,
            stdout=file,
            env=environment or variables(),
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()  # nothing, once it has ended


def said(root: Path) -> str:
    return (root.parent / "said.txt").read_text()


def compiling(root: Path) -> int:
    """Return the number of compiles that have begun, according to the output."""
    return len(re.findall(r": compile$", said(root), re.MULTILINE))


def wait_for_room(root: Path) -> set[str]:
    """Return the configs that wait for disk space here, according to the output."""
    return set(re.findall(r"▸ (.+): waiting for space on this computer's disk: ", said(root)))


def wrapper(folder: Path, program: str, script: str) -> Path:
    """A program that stands before the real one, which it runs: returns the folder to put on the PATH."""
    real = shutil.which(program)
    folder.mkdir(exist_ok=True)
    (folder / program).write_text(f"#!/bin/bash\nreal={real}\n{script}")
    (folder / program).chmod(0o755)
    return folder


@pytest.mark.trial
def test_two_machines_build_four_configs_and_all_comes_home_through_a_corrupted_transfer(small: Path) -> None:
    """Everything goes well but for one package, which is broken on its way; no secret is anywhere but where it was.

    What the first config of a group compiles, the second finds in the cache that a third machine holds.
    """
    cached = with_cache(small)
    with_licences(small)
    script = small / "recipe" / "build.sh"
    script.write_text(script.read_text().replace("mkdir -p dist", "mkdir -p dist; env; cat /proc/*/environ || true"))
    spoiled, password = small.parent / "spoiled", small.parent / "password"
    path = wrapper(
        small.parent / "bin",
        "rsync",
        f'cp "{small}"/build_artifacts/fleet/*/keys/cache "{password}"\n{KNOCK}'
        f'"$real" "$@"; code=$?\nfor package in "${{@: -1}}"linux-64/small-*.conda; do\n'
        f'[ -f "$package" ] && mkdir "{spoiled}" 2>/dev/null && printf X | dd of="$package" conv=notrunc status=none\n'
        "done\nexit $code\n",
    )
    secret = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "OS_PASSWORD", "ANACONDA_API_TOKEN", "BINSTAR_TOKEN"), PLANTED)
    ended = subprocess.run(
        run_words(small, "--json", *cached),
        cwd=ROOT,
        text=True,
        capture_output=True,
        env=variables(path, **secret, sha="0" * 39 + "1"),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert report(small).commit == "0" * 39 + "1", "which a release of these packages names"
    assert {config["state"] for config in json.loads(ended.stdout)["configs"]} == {"done"}
    assert spoiled.exists()
    assert (small.parent / "knocked").read_text() == "28\n", "the cache lets in none but the run's machines"
    assert_whole(small, CONFIGS)
    assert_given_back(small)
    (run,) = ledgered(small)
    by_worker = {worker.name: [job.config for job in run.jobs if job.worker == worker.name] for worker in run.workers}
    assert by_worker.pop(f"kiln-{run.id}-cache") == []
    assert sorted(map(len, by_worker.values())) in ([2, 2], [1, 3])
    first = {job.config: job for job in run.jobs if job.cold}
    assert len(first) == 2
    begins, ends = ([getattr(job, name) for job in first.values()] for name in ("started", "finished"))
    assert max(begins) < min(ends), "both machines build at the same time"
    for config in report(small).configs:
        assert config.log is not None
        assert "compiled for CUDA" in config.log.read_text() or "=== compile" in config.log.read_text()
        assert f"=== {'put into' if config.cold else 'found in'} the cache" in config.log.read_text()
    for planted in (PLANTED, password.read_text()):
        searched = subprocess.run(("grep", "-rlaF", planted, str(small)), capture_output=True, text=True, check=False)
        assert searched.stdout == ""
        assert planted not in ended.stdout + ended.stderr
    assert_published_and_shown(small, run)
    again = subprocess.run(run_words(small), cwd=ROOT, text=True, capture_output=True, check=False)
    assert (again.returncode, "nothing to build" in again.stderr) == (0, True)


def with_licences(root: Path) -> None:
    """Let every package carry the text of its licence, without which none is published."""
    recipe, library = root / "recipe" / "meta.yaml", root / "recipe" / "install-lib.sh"
    about = "    about:\n      license: CC0-1.0\n      license_file: LICENCE\n"
    recipe.write_text(
        recipe.read_text().replace("    script: install-lib.sh\n", f"    script: install-lib.sh\n{about}")
    )
    library.write_text(library.read_text() + 'echo "do as you like" >LICENCE\n')


def assert_published_and_shown(root: Path, run: FleetRun) -> None:
    """A fleet's packages are published as those of any build, and the report names the worker of each config."""
    (root / "outputs.txt").write_text("small\nlibsmall\n")
    kiln, channel = (sys.executable, "-m", "kiln", "-C", str(root)), root.parent / "channel"
    subprocess.run((*kiln, "publish", "--to", str(channel)), cwd=ROOT, check=True, capture_output=True, text=True)
    built = {package.name for package in (root / "build_artifacts" / "linux-64").glob("*.conda")}
    index = json.loads((channel / "linux-64" / "repodata.json").read_text())
    assert set(index["packages.conda"]) == built
    page = root.parent / "page.html"
    subprocess.run((*kiln, "report", "--out", str(page)), cwd=ROOT, check=True, capture_output=True)
    assert all(f">{job.worker}</text>" in page.read_text() for job in run.jobs)


@pytest.mark.trial
def test_a_machine_that_is_cut_off_is_given_up_and_past_a_refused_one_ctrl_c_gives_all_back(small_disk: Path) -> None:
    """The provider, here a docker that runs no third machine, refuses the one that is to take the lost one's place.

    All goes back though not a byte is left on the controller's disk by then.
    """
    hold(small_disk)
    refusal = (
        'case "$*" in run*--name=kiln-????????-3[!0-9]*) echo "quota exceeded: 2 machines" >&2; exit 125;; esac\n'
        'exec "$real" "$@"\n'
    )
    path = wrapper(small_disk.parent / "bin", "docker", refusal)
    with started(small_disk, "--unreachable-timeout", "10s", environment=variables(path)) as process:
        until(lambda: len(building(small_disk)) == 2, "two builds run", process)
        cut, other = building(small_disk)[CUDA_311], building(small_disk)[CPU_311]
        docker("network", "disconnect", "bridge", cut)
        until(
            lambda: state_of(small_disk, cut) is WorkerState.TERMINATED,
            "the worker that is cut off is terminated",
            process,
        )
        until(
            lambda: WorkerState.REFUSED in {worker.state for worker in ledgered(small_disk)[0].workers},
            "another is asked for, and refused",
            process,
        )
        let_go(other)
        until(lambda: states(small_disk)[CPU_311] is ConfigState.DONE, "a config is finished", process)
        fill(small_disk / "build_artifacts")
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == Interrupted.exit_code
    (run,) = ledgered(small_disk)
    first = next(job for job in run.jobs if (job.config, job.attempt) == (CUDA_311, 1))
    assert (first.worker, first.state) == (cut, JobState.LOST)
    assert "no answer" in first.reason
    (refused,) = [worker for worker in run.workers if worker.name not in {cut, other}]
    assert (refused.state, "quota exceeded" in refused.reason) == (WorkerState.REFUSED, True)
    assert_whole(small_disk, [config for config, state in states(small_disk).items() if state is ConfigState.DONE])
    assert_given_back(small_disk)


@pytest.mark.sampled
def test_a_killed_controller_is_gone_on_with_past_dead_machines_and_a_config_that_does_not_compile(small: Path) -> None:
    """One of the machines that die builds, the other holds the cache."""
    hold(small)
    options = ("--unreachable-timeout", "10s", *with_cache(small))
    script = small / "recipe" / "build.sh"
    script.write_text(script.read_text() + '[ "$cuda_compiler_version$interpreter" != None3.12 ] || exit 3\n')
    with started(small, *options) as process:
        until(lambda: len(building(small)) == 2, "two builds run", process)
        before = building(small)
        process.send_signal(signal.SIGKILL)
        process.wait()
    (run,) = ledgered(small)
    assert run.finished is None
    cache = f"kiln-{run.id}-cache"
    assert sorted(containers(small)) == sorted([*before.values(), cache])
    folder = small / "build_artifacts" / "fleet" / run.id
    with started(small, *options) as process:
        until(lambda: "resuming the fleet run" in said(small), "the run is found again", process)
        until(lambda: found_again(small, since=run), "its machines are, too", process)
        (small / HELD).unlink()
        docker("kill", before[CUDA_311], cache)
        let_go(before[CPU_311])
        assert process.wait(600) == BuildFailed.exit_code
    (run,) = ledgered(small)
    assert Path(folder).name == run.id
    assert states(small)[CPU_312] is ConfigState.FAILED
    assert "the recipe's own build step could not be built" in said(small)
    assert_whole(small, [CUDA_311, CUDA_312, CPU_311])
    jobs = {(job.config, job.attempt): job for job in run.jobs}
    assert jobs[CPU_311, 1].state is JobState.COLLECTED, "what ran on while the controller was dead was not begun anew"
    assert jobs[CUDA_311, 1].state is JobState.LOST
    assert jobs[CUDA_311, 2].state is JobState.COLLECTED
    assert_given_back(small)


@pytest.mark.trial
def test_a_full_disk_on_a_machine_and_a_full_one_here_cost_no_package(small_disk: Path) -> None:
    """The worker gets no other config, and its own goes to another; packages wait there for disk space here."""
    if not (small_disk / "build_artifacts").is_mount():
        pytest.skip("only root can mount a small disk")
    hold(small_disk)
    told = small_disk.parent / "told.json"
    told.write_text(json.dumps({"kiln_local_disk": "600m"}))
    with started(small_disk, "--vars", str(told)) as process:
        until(lambda: compiling(small_disk) == 2, "two compiles run", process)
        (small_disk / HELD).unlink()
        full, other = building(small_disk)[CUDA_311], building(small_disk)[CPU_311]
        docker("exec", full, "sh", "-c", "! dd if=/dev/zero of=/var/lib/kiln/project/build_artifacts/filler bs=1M")
        filler = fill(small_disk / "build_artifacts")
        let_go(full)
        let_go(other)
        until(lambda: wait_for_room(small_disk) >= FIRST, "both configs wait", process)
        filler.unlink()
        assert process.wait(900) == 0, said(small_disk)
    (run,) = ledgered(small_disk)
    jobs = {(job.config, job.attempt): job for job in run.jobs}
    first, second = jobs[CUDA_311, 1], jobs[CUDA_311, 2]
    assert (first.worker, first.state, first.exit_code) == (full, JobState.LOST, DiskFull.exit_code)
    assert "its disk is full" in first.reason
    assert (second.worker != full, second.state) == (True, JobState.COLLECTED)
    assert (jobs[CPU_311, 1].worker, jobs[CPU_311, 1].state) == (other, JobState.COLLECTED)
    assert not [job for job in run.jobs if job.worker == full and job is not first]
    assert_whole(small_disk, CONFIGS)
    assert_given_back(small_disk)


def found_again(root: Path, since: FleetRun) -> bool:
    """Return whether another process has found all workers of a run, and queried them."""
    before = {worker.name: worker.provisioned for worker in since.workers}
    now = ledgered(root)[0].workers
    alive = [
        item for item in now if item.state not in {WorkerState.TERMINATED, WorkerState.LOST, WorkerState.TERMINATING}
    ]
    return all(item.state is WorkerState.READY and item.provisioned != before.get(item.name) for item in alive)


def state_of(root: Path, worker: str) -> WorkerState:
    return next(item.state for item in ledgered(root)[0].workers if item.name == worker)


LOCK = "iptables -w -{} INPUT -p tcp --dport 22 -j DROP"  # nothing of a connection that is open gets through either


@pytest.mark.trial
def test_a_way_to_all_workers_that_is_blocked_for_longer_than_the_patience_costs_no_build(small: Path) -> None:
    """The builds end meanwhile, and are collected once the way is open."""
    hold(small)
    with started(small, "--unreachable-timeout", "5s", "--replacements", "0") as process:
        until(lambda: len(building(small)) == 2, "two builds run", process)
        workers = sorted(building(small).values())
        for worker in workers:
            docker("exec", worker, "sh", "-c", LOCK.format("I"))
        until(lambda: "it exists: waiting" in said(small), "the silence was looked into", process)
        (small / HELD).unlink()
        for worker in workers:
            let_go(worker)
            until(lambda worker=worker: not busy(worker), "its build has ended", process)  # type: ignore[misc] # at once
        assert len(building(small)) == 2, "the controller does not know of that yet"
        for worker in workers:
            docker("exec", worker, "sh", "-c", LOCK.format("D"))
        assert process.wait(900) == 0, said(small)
    (run,) = ledgered(small)
    assert sorted(worker.name for worker in run.workers) == workers
    assert {(job.attempt, job.state) for job in run.jobs} == {(1, JobState.COLLECTED)}
    assert_whole(small, CONFIGS)
    assert_given_back(small)


# Ends the playbook by which the program was called, as the kernel does that is out of memory.
KILL_PLAYBOOK = """
if [ "$1" = rm ]; then
    process=$$; playbook=
    while [ "$process" -gt 1 ]; do
        if tr '\\0' ' ' <"/proc/$process/cmdline" | grep -q ansible-playbook; then playbook=$process; fi
        process=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$process/status")
    done
    kill -9 "$playbook"
    exit 1
fi
exec "$real" "$@"
"""


@pytest.mark.trial
def test_a_tear_down_whose_playbook_is_killed_does_not_tell_that_nothing_is_left(small: Path) -> None:
    """Neither in a run's own tear-down nor in that of ``kiln fleet down``, of which the next one finds the machines."""
    hold(small)
    path = variables(wrapper(small.parent / "bin", "docker", KILL_PLAYBOOK))
    with started(small, environment=path) as process:
        until(lambda: len(building(small)) == 2, "two builds run", process)
        process.send_signal(signal.SIGINT)
        assert process.wait(900) == MachinesUnknown.exit_code, said(small)
    (run,) = ledgered(small)
    assert (run.finished, len(containers(small))) == (None, 2)
    down = subprocess.run(words(small, "down"), cwd=ROOT, text=True, capture_output=True, env=path, check=False)
    assert (down.returncode, "all workers are terminated" in down.stderr) == (MachinesUnknown.exit_code, False), (
        down.stderr
    )
    assert ledgered(small)[0].finished is None
    down = subprocess.run(words(small, "down"), cwd=ROOT, text=True, capture_output=True, check=False)
    assert (down.returncode, "all workers are terminated" in down.stderr) == (0, True), down.stderr
    assert containers(small) == []
    assert ledgered(small)[0].finished is not None
