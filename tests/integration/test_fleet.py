"""The fleet on real machines: containers that boot systemd and sshd, reached by ssh alone, with every fault once."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest
from moto.server import ThreadedMotoServer

from kiln import bootstrap, image
from kiln.archive import read_info
from kiln.channel import Channel
from kiln.container import choose
from kiln.errors import BuildFailed, CredentialsRefused, DiskFull, Interrupted, UnsupportedPython
from kiln.fleet import orphans
from kiln.ledger.fleet import FleetLedger
from kiln.model.feedstock import Feedstock
from kiln.model.fleet import FleetRun, JobState, MachineState
from kiln.model.run import CellState
from tests import remote_cache
from tests.openstack_api import Cloud, serve
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.model.run import MatrixReport

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"
CELLS = sorted(file.stem for file in (SMALL / ".ci_support").glob("*.yaml"))
CUDA_311, CUDA_312, CPU_311, CPU_312 = CELLS
PLANTED = "planted-5f2b7c1d9e"
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")
# While this is on a machine, its compiles wait. It is no part of the recipe, so that cells before and after it is gone
# are of the same, and take each other's packages.
HELD = ".ci_support/held"
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
# Once, from this computer, which is none of the run's machines: 28 is curl's word for no answer in time.
KNOCK = """
here=$(dirname "$0")/..
known=$(echo "$here"/small-feedstock/build_artifacts/fleet/*/cache.json)
if [ -e "$known" ] && mkdir "$here/knocking" 2>/dev/null; then
    curl --silent --max-time 3 "$(cut -d'"' -f4 "$known")"
    echo "$?" >"$here/knocked"
fi
"""
FIRST = {"no CUDA · interpreter 3.11", "CUDA 12.9 · interpreter 3.11"}  # as they are shown
HOLD = f'while [ -e "$RECIPE_DIR/../{HELD}" ]; do sleep 0.2; done\n'

pytestmark = [
    pytest.mark.needs("docker", "ssh", "ssh-keygen", "rsync", "nginx"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason=f"{UnsupportedPython.__name__}: Ansible needs Python 3.11"),
]


@pytest.fixture(scope="module")
def machines() -> None:
    """The image of the machines, made where it is not there."""
    engine = choose("docker", env=os.environ).engine
    assert engine is not None
    folder = Feedstock(root=ROOT).artifacts / "images"
    image.base(engine, image.machine_recipe(), tag=image.machine_tag("bookworm"), folder=folder, env=os.environ)


@pytest.fixture
def small(tmp_path: Path, machines: None) -> Iterator[Path]:
    """A copy of the small feedstock; whatever a test left of its machines is removed."""
    root = Path(shutil.copytree(SMALL, tmp_path / "small-feedstock"))
    yield root
    left = containers(root)
    if left:
        docker("rm", "--force", "--volumes", *left)


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
    """Whether docker's own processes see what is mounted here."""
    (folder / "seen").touch()
    tag = image.machine_tag("bookworm")
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


def words(root: Path, action: str, *more: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "kiln", "-C", str(root), "fleet", action, *more)


def run_words(root: Path, *more: str) -> tuple[str, ...]:
    common = ("--provider", "local", "--all", "--machines", "2", "--container", "none", "--poll", "1s")
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


def docker(*arguments: str) -> str:
    return subprocess.run(("docker", *arguments), check=True, capture_output=True, text=True).stdout


def ledgered(root: Path) -> tuple[FleetRun, ...]:
    path = root / "build_artifacts" / "ledger.sqlite"
    if not path.exists():
        return ()
    with FleetLedger(path) as ledger:
        return ledger.fleets()


def report(root: Path) -> MatrixReport:
    with FleetLedger(root / "build_artifacts" / "ledger.sqlite") as ledger:
        found = ledger.report()
    assert found is not None
    return found


def states(root: Path) -> dict[str, CellState]:
    return {cell.config: cell.state for cell in report(root).cells}


def containers(root: Path) -> list[str]:
    """The machines that there are of a feedstock's runs, stopped ones too."""
    names = []
    for run in ledgered(root):
        names += docker("ps", "--all", "--format", "{{.Names}}", "--filter", f"label=kiln-run={run.id}").split()
    return names


@contextmanager
def started(root: Path, *more: str, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run ``kiln fleet run`` beside the test; what it says goes to a file, so that it never waits for a reader."""
    said = root.parent / "said.txt"
    with (
        said.open("a") as file,
        subprocess.Popen(
            run_words(root, *more),
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


def building(root: Path) -> dict[str, str]:
    """The cells whose builds run, each with its machine."""
    return {job.config: job.machine for run in ledgered(root) for job in run.jobs if job.state is JobState.RUNNING}


def compiling(root: Path) -> int:
    """How many compiles have begun, as far as it is shown."""
    return len(re.findall(r": compile$", said(root), re.MULTILINE))


def wait_for_room(root: Path) -> set[str]:
    """The cells that have found no room here, as far as it is shown."""
    return set(re.findall(r"▸ (.+): waits for room on this computer's disk: ", said(root)))


def hold(root: Path) -> None:
    """Let compiles wait on the machines until they are let go."""
    (root / HELD).touch()
    script = root / "recipe" / "build.sh"
    script.write_text(script.read_text().replace("mkdir -p dist", f"{HOLD}mkdir -p dist"))


def let_go(machine: str) -> None:
    docker("exec", machine, "rm", "-f", f"/var/lib/kiln/project/{HELD}")


def wrapper(folder: Path, program: str, script: str) -> Path:
    """A program that stands before the real one, which it runs: returns the folder to put on the PATH."""
    real = shutil.which(program)
    folder.mkdir(exist_ok=True)
    (folder / program).write_text(f"#!/bin/bash\nreal={real}\n{script}")
    (folder / program).chmod(0o755)
    return folder


def assert_given_back(root: Path) -> None:
    """Nothing of a run is left: no machine, no process, no key."""
    assert containers(root) == []
    for run in ledgered(root):
        folder = root / "build_artifacts" / "fleet" / run.id
        assert orphans.find(folder) == ()
        assert not list((folder / "keys").glob("*"))
        assert not (folder / "runner").exists()
        assert run.finished is not None
        assert {machine.state for machine in run.machines} <= {MachineState.GONE, MachineState.REFUSED}


def assert_whole(root: Path, cells: list[str]) -> None:
    """The finished cells' packages lie in the channel, can be read, and are those of its index."""
    channel = Channel(root=root / "build_artifacts")
    names = {read_info(package, "index.json") and package.name for package in channel.packages()}
    index = json.loads((channel.root / "linux-64" / "repodata.json").read_text())
    assert set(index["packages.conda"]) == names
    done = {cell.config: cell for cell in report(root).cells if cell.state in {CellState.DONE, CellState.FOUND}}
    assert sorted(done) == sorted(cells)
    for cell in done.values():
        assert len(cell.packages) == 2
        assert {package.artifact.path.name for package in cell.packages} <= names


def test_two_machines_build_four_cells_and_all_comes_home_through_a_corrupted_transfer(small: Path) -> None:
    """Everything goes well but for one package, which is broken on its way; no secret is anywhere but where it was.

    What the first cell of a group compiles, the second finds in the cache that a third machine holds.
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
        env=variables(path, **secret),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert {cell["state"] for cell in json.loads(ended.stdout)["cells"]} == {"done"}
    assert spoiled.exists()
    assert (small.parent / "knocked").read_text() == "28\n", "the cache lets in none but the run's machines"
    assert_whole(small, CELLS)
    assert_given_back(small)
    (run,) = ledgered(small)
    by_machine = {
        machine.name: [job.config for job in run.jobs if job.machine == machine.name] for machine in run.machines
    }
    assert by_machine.pop(f"kiln-{run.id}-cache") == []
    assert sorted(map(len, by_machine.values())) in ([2, 2], [1, 3])
    first = {job.config: job for job in run.jobs if job.leader}
    assert len(first) == 2
    begins, ends = ([getattr(job, name) for job in first.values()] for name in ("began", "ended"))
    assert max(begins) < min(ends), "both machines build at the same time"
    for cell in report(small).cells:
        assert cell.log is not None
        assert "compiled for CUDA" in cell.log.read_text() or "=== compile" in cell.log.read_text()
        assert f"=== {'put into' if cell.leader else 'found in'} the cache" in cell.log.read_text()
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
    """What a fleet has built is published as any build is, and its page says which machine built what."""
    (root / "outputs.txt").write_text("small\nlibsmall\n")
    kiln, channel = (sys.executable, "-m", "kiln", "-C", str(root)), root.parent / "channel"
    subprocess.run((*kiln, "publish", "--to", str(channel)), cwd=ROOT, check=True, capture_output=True, text=True)
    built = {package.name for package in (root / "build_artifacts" / "linux-64").glob("*.conda")}
    index = json.loads((channel / "linux-64" / "repodata.json").read_text())
    assert set(index["packages.conda"]) == built
    page = root.parent / "page.html"
    subprocess.run((*kiln, "report", "--out", str(page)), cwd=ROOT, check=True, capture_output=True)
    assert all(f">{job.machine}</text>" in page.read_text() for job in run.jobs)


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
    with started(small_disk, "--patience", "10s", environment=variables(path)) as process:
        until(lambda: len(building(small_disk)) == 2, "two builds run", process)
        cut, other = building(small_disk)[CUDA_311], building(small_disk)[CPU_311]
        docker("network", "disconnect", "bridge", cut)
        until(
            lambda: state_of(small_disk, cut) is MachineState.GONE, "the machine that is cut off is given back", process
        )
        until(
            lambda: MachineState.REFUSED in {machine.state for machine in ledgered(small_disk)[0].machines},
            "another is asked for, and refused",
            process,
        )
        let_go(other)
        until(lambda: states(small_disk)[CPU_311] is CellState.DONE, "a cell is finished", process)
        fill(small_disk / "build_artifacts")
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == Interrupted.exit_code
    (run,) = ledgered(small_disk)
    first = next(job for job in run.jobs if (job.config, job.attempt) == (CUDA_311, 1))
    assert (first.machine, first.state) == (cut, JobState.LOST)
    assert "no answer" in first.reason
    (refused,) = [machine for machine in run.machines if machine.name not in {cut, other}]
    assert (refused.state, "quota exceeded" in refused.reason) == (MachineState.REFUSED, True)
    assert_whole(small_disk, [config for config, state in states(small_disk).items() if state is CellState.DONE])
    assert_given_back(small_disk)


def test_a_killed_controller_is_gone_on_with_past_dead_machines_and_a_cell_that_does_not_compile(small: Path) -> None:
    """One of the machines that die builds, the other holds the cache."""
    hold(small)
    options = ("--patience", "10s", *with_cache(small))
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
        until(lambda: "going on with the fleet run" in said(small), "the run is found again", process)
        until(lambda: found_again(small, since=run), "its machines are, too", process)
        (small / HELD).unlink()
        docker("kill", before[CUDA_311], cache)
        let_go(before[CPU_311])
        assert process.wait(600) == BuildFailed.exit_code
    (run,) = ledgered(small)
    assert Path(folder).name == run.id
    assert states(small)[CPU_312] is CellState.FAILED
    assert "the recipe's own build step could not be built" in said(small)
    assert_whole(small, [CUDA_311, CUDA_312, CPU_311])
    jobs = {(job.config, job.attempt): job for job in run.jobs}
    assert jobs[CPU_311, 1].state is JobState.HOME, "what ran on while the controller was dead was not begun anew"
    assert jobs[CUDA_311, 1].state is JobState.LOST
    assert jobs[CUDA_311, 2].state is JobState.HOME
    assert_given_back(small)


def test_a_full_disk_on_a_machine_and_a_full_one_here_cost_no_package(small_disk: Path) -> None:
    """The machine gets no other cell, and its own goes to another; what finds no room here waits where it is."""
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
        until(lambda: wait_for_room(small_disk) >= FIRST, "both cells wait", process)
        filler.unlink()
        assert process.wait(900) == 0, said(small_disk)
    (run,) = ledgered(small_disk)
    jobs = {(job.config, job.attempt): job for job in run.jobs}
    first, second = jobs[CUDA_311, 1], jobs[CUDA_311, 2]
    assert (first.machine, first.state, first.exit_code) == (full, JobState.LOST, DiskFull.exit_code)
    assert "its disk is full" in first.reason
    assert (second.machine != full, second.state) == (True, JobState.HOME)
    assert (jobs[CPU_311, 1].machine, jobs[CPU_311, 1].state) == (other, JobState.HOME)
    assert not [job for job in run.jobs if job.machine == full and job is not first]
    assert_whole(small_disk, CELLS)
    assert_given_back(small_disk)


def found_again(root: Path, since: FleetRun) -> bool:
    """Whether all machines of a run have been found by another process, and looked at."""
    before = {machine.name: machine.up for machine in since.machines}
    now = ledgered(root)[0].machines
    alive = [each for each in now if each.state not in {MachineState.GONE, MachineState.LOST, MachineState.LEAVING}]
    return all(each.state is MachineState.READY and each.up != before.get(each.name) for each in alive)


def state_of(root: Path, machine: str) -> MachineState:
    return next(each.state for each in ledgered(root)[0].machines if each.name == machine)


@pytest.fixture
def moto() -> Iterator[str]:
    """An Amazon that knows nobody: every call must be signed by a user, and there is none."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    before = calls_without_a_user(server, "0")
    yield f"http://{host}:{port}"
    calls_without_a_user(server, before)
    server.stop()


def calls_without_a_user(server: ThreadedMotoServer, number: str) -> str:
    """Let so many calls pass that nobody has signed; returns how many it were."""
    host, port = server.get_host_and_port()
    kind = {"Content-Type": "text/plain"}
    with urlopen(Request(f"http://{host}:{port}/moto-api/reset-auth", data=number.encode(), headers=kind)) as answer:
        return str(json.load(answer)["PREVIOUS_INITIAL_NO_AUTH_ACTION_COUNT"])


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """An OpenStack with another password."""
    yield from serve(Cloud(password="another"))


def test_no_credentials_are_told_as_such_and_leave_nothing(small: Path) -> None:
    """AWS without any credentials, on a computer that must not find some elsewhere."""
    nowhere = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    assert "credentials" in refused_credentials(small, "aws", {}, AWS_CONFIG_FILE="/dev/null", **nowhere)


def test_wrong_credentials_of_aws_are_told_as_such_and_leave_nothing(small: Path, moto: str) -> None:
    wrong = {"AWS_ACCESS_KEY_ID": "AKIANOBODY", "AWS_SECRET_ACCESS_KEY": PLANTED, "AWS_REGION": "us-east-1"}
    assert "AuthFailure" in refused_credentials(small, "aws", {"kiln_aws_endpoint": moto}, **wrong)


def test_a_wrong_password_of_openstack_is_told_as_such_and_leaves_nothing(small: Path, cloud: Cloud) -> None:
    assert "HTTP 401" in refused_credentials(small, "openstack", {}, **cloud.environment(PLANTED))
    assert cloud.servers == {}


def refused_credentials(root: Path, provider: str, told: dict[str, str], **environment: str) -> str:
    """Run the fleet where nobody is let in: returns what is said of that, once it is seen that nothing is left."""
    file = root.parent / "told.json"
    file.write_text(json.dumps({"kiln_controller": "192.0.2.1", **told}))
    kept = {name: text for name, text in os.environ.items() if name not in KEYS and not name.startswith("OS_")}
    ended = subprocess.run(
        words(root, "run", "--all", "--provider", provider, "--vars", str(file)),
        cwd=ROOT,
        text=True,
        capture_output=True,
        env={**kept, **environment},
        check=False,
    )
    assert ended.returncode == CredentialsRefused.exit_code, ended.stderr
    assert "does not accept the credentials" in ended.stderr
    assert PLANTED not in ended.stderr
    (run,) = ledgered(root)
    assert {machine.state for machine in run.machines} == {MachineState.REFUSED}
    assert_given_back(root)
    return ended.stderr


PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.command: sleep 611
"""
PLAYER = """
import os, sys
from pathlib import Path
from kiln.fleet.playbooks import Playbooks, Site
folder = Path(sys.argv[1])
environment = {name: os.environ[name] for name in ("PATH", "HOME")} | {"LC_ALL": "C.UTF-8"}
site = Site(folder=folder, playbooks=folder, python=Path(sys.argv[2]), variables={}, environment=environment)
Playbooks(site).play("play.yml")
"""


def test_a_killed_controller_leaves_no_playbook_running(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAY)
    python = bootstrap.fleet(ROOT)
    with subprocess.Popen((sys.executable, "-c", PLAYER, str(tmp_path), str(python)), cwd=ROOT, text=True) as process:
        until(lambda: any(sleeps(pid) for pid in orphans.find(tmp_path)), "the playbook runs", process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda: not orphans.find(tmp_path), "nothing of it runs")


def sleeps(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", b"611"]
    return False
