"""Containers keep what their plan promises, on real Docker and real Podman, whichever is there."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import ContainerFault, DownloadFailed
from kiln.container.container import Container, remove_orphaned_containers
from kiln.container.images import LABEL, OwnerProcess
from kiln.container.plan import ContainerLimits, ContainerRun, ContainerUser, Mount, create_command
from tests.waiting import CEILING, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from kiln.container.engine import Engine
    from kiln.container.plan import ContainerProgramResult

    Line = Callable[..., ContainerRun]

ROOT = Path(__file__).parents[2]
MEGABYTE = 1 << 20
# Somebody who is not root, so that what is seen to be theirs cannot be root's by accident.
SOMEBODY = ContainerUser(uid=os.getuid() or 4321, gid=os.getgid() or 4321)


@pytest.fixture
def plan(base_image: str) -> Line:
    """A plan for a line of bash."""

    def make(line: str, **changes: object) -> ContainerRun:
        return dataclasses.replace(ContainerRun(image=base_image, argv=("bash", "-c", line)), **changes)  # type: ignore[arg-type]

    return make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of somebody's."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, SOMEBODY.uid, SOMEBODY.gid)
    return theirs


def run(engine: Engine, plan: ContainerRun) -> ContainerProgramResult:
    with Container(engine, plan) as container:
        return container.run(timeout=CEILING)


def names(engine: Engine) -> set[str]:
    """The containers of kiln's that exist."""
    return set(engine.run_command("ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}").stdout.split())


def test_the_exit_code_and_the_output_come_back(engine: Engine, plan: Line) -> None:
    ended = run(engine, plan("echo out; echo err >&2; exit 7"))
    assert (ended.exit_code, ended.ok, ended.memory_kills) == (7, False, 0)
    assert sorted(ended.tail.splitlines()) == ["err", "out"]


def test_output_is_streamed_line_by_line_while_the_program_runs(
    engine: Engine, plan: Line, folder: Path, tmp_path: Path
) -> None:
    """The program continues only after its line was received: a file that the listener writes says so."""
    heard: list[str] = []

    def hear(line: str) -> None:
        heard.append(line)
        (folder / line).touch()

    waiting = "echo first; until [ -e /theirs/first ]; do sleep 0.05; done; echo second"
    mounts = (Mount(source=folder, target="/theirs"),)
    with Container(engine, plan(waiting, mounts=mounts)) as container:
        ended = container.run(on_line=hear, timeout=CEILING, log=tmp_path / "log.txt")
    assert (ended.exit_code, heard) == (0, ["first", "second"])
    assert "second\n" in (tmp_path / "log.txt").read_text()


def test_files_written_on_a_mount_are_the_users(engine: Engine, plan: Line, folder: Path) -> None:
    mounts = (Mount(source=folder, target="/theirs", read_only=False),)
    assert run(engine, plan("touch /theirs/file; mkdir /theirs/sub", mounts=mounts, user=SOMEBODY)).ok
    assert {(path.name, path.stat().st_uid, path.stat().st_gid) for path in folder.iterdir()} == {
        ("file", SOMEBODY.uid, SOMEBODY.gid),
        ("sub", SOMEBODY.uid, SOMEBODY.gid),
    }


@pytest.mark.skipif(os.getuid() != 0, reason="an image's entry point that is root changes to any user as root alone")
def test_an_image_that_starts_as_root_can_change_to_the_given_user(engine: Engine, plan: Line, folder: Path) -> None:
    """As conda-forge's images do: they make their user with the number in HOST_USER_ID."""
    enter = "useradd -o -u $HOST_USER_ID someone && exec setpriv --reuid someone --clear-groups touch /theirs/file"
    planned = plan(
        enter,
        environment={"HOST_USER_ID": str(SOMEBODY.uid)},
        mounts=(Mount(source=folder, target="/theirs", read_only=False),),
        capabilities=("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"),
    )
    ended = run(engine, planned)
    assert ended.ok, ended.tail
    assert (folder / "file").stat().st_uid == SOMEBODY.uid


def test_a_read_only_mount_refuses_to_be_written(engine: Engine, plan: Line, folder: Path) -> None:
    (folder / "file").write_text("as it was")
    ended = run(engine, plan("echo changed >/theirs/file", mounts=(Mount(source=folder, target="/theirs"),)))
    assert not ended.ok
    assert "Read-only file system" in ended.tail
    assert (folder / "file").read_text() == "as it was"


def test_the_network_is_out_of_reach_unless_granted(engine: Engine, plan: Line) -> None:
    assert "Network is unreachable" in run(engine, plan("echo >/dev/tcp/192.0.2.1/9")).tail
    assert run(engine, plan("ls /sys/class/net")).tail.split() == ["lo"]


def test_no_capability_and_no_new_privilege(engine: Engine, plan: Line) -> None:
    """Root without capabilities may not even give a file away."""
    ended = run(engine, plan("grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; touch /tmp/f; chown 1 /tmp/f"))
    lines = set(ended.tail.split("\n"))  # an engine passes the two streams on in either order
    assert lines >= {"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"}
    assert "Operation not permitted" in ended.tail
    assert not ended.ok


def test_a_program_that_exceeds_its_memory_is_reported_as_such(engine: Engine, plan: Line) -> None:
    """A build whose compiler is ended for want of memory fails by itself, with a code of its own."""
    if engine.lacks:
        pytest.skip(engine.lacks[0])
    greedy = "python3 -c 'x = bytearray(500_000_000)' || exit 2"
    ended = run(engine, plan(greedy, limits=ContainerLimits(memory=64 * MEGABYTE)))
    assert (ended.exit_code, ended.peak_memory) == (2, 64 * MEGABYTE)
    assert ended.memory_kills == 1
    survived = run(
        engine, plan("python3 -c 'x = bytearray(500_000_000)'; true", limits=ContainerLimits(memory=64 * MEGABYTE))
    )
    assert (survived.ok, survived.memory_kills) == (True, 1)


@pytest.mark.sampled
def test_processes_and_cores_are_bounded(engine: Engine, plan: Line) -> None:
    if engine.lacks:
        pytest.skip(engine.lacks[0])
    many = "import subprocess\nfor i in range(50): subprocess.Popen(['sleep', '60'])"
    ended = run(engine, plan(f'exec python3 -c "{many}"', limits=ContainerLimits(processes=20)))
    assert "Resource temporarily unavailable" in ended.tail
    quota = "cat /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us"
    assert run(engine, plan(quota, limits=ContainerLimits(cores=0.5))).tail.split()[0] == "50000"


def test_secrets_reach_the_program_alone(engine: Engine, plan: Line, tmp_path: Path) -> None:
    planned = plan(
        "echo ${#TOKEN} $PLAIN; echo it is $TOKEN", secrets={"TOKEN": "hidden"}, environment={"PLAIN": "a b"}
    )
    with Container(engine, planned) as container:
        ended = container.run(log=tmp_path / "log.txt")
    assert ended.tail.splitlines() == ["6 a b", "it is ***"]
    assert "hidden" not in (tmp_path / "log.txt").read_text()


@pytest.mark.sampled
def test_time_runs_out_for_the_program_too(engine: Engine, plan: Line) -> None:
    with Container(engine, plan("echo begun; sleep 600")) as container:
        ended = container.run(timeout=3)
        assert ended.exit_code == 124
        state = engine.run_command("inspect", "--format", "{{.State.Running}}", container.name)
    assert state.stdout.strip() == "false"


def test_nothing_is_left_when_the_block_fails(engine: Engine, plan: Line) -> None:
    container = Container(engine, plan("sleep 600"))

    def fail_inside() -> None:
        with container:
            assert engine.run_command("start", container.name).ok
            assert container.name in names(engine)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert container.name not in names(engine)


def test_nothing_is_left_when_the_engine_refuses_the_plan(engine: Engine, plan: Line, tmp_path: Path) -> None:
    container = Container(engine, plan("true", options=("--no-such-option",)))
    with pytest.raises(ContainerFault, match="unknown flag: --no-such-option"):
        container.__enter__()
    assert container.name not in names(engine)


@pytest.mark.sampled
def test_nothing_is_left_when_the_creation_is_interrupted(
    engine: Engine, plan: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst moment: the engine has made the container, and kiln does not know it yet."""
    container = Container(engine, plan("true"))

    def interrupted(verb: str, result: object) -> None:
        assert container.name in names(engine)
        raise KeyboardInterrupt(verb)

    monkeypatch.setattr(container, "_require_success", interrupted)
    with pytest.raises(KeyboardInterrupt, match="create"):
        container.__enter__()
    assert container.name not in names(engine)


KILLED = """
import os, sys
from kiln.container.container import Container
from kiln.container.engine import choose_engine
from kiln.container.plan import ContainerRun
engine = choose_engine(sys.argv[1], env=os.environ).engine
with Container(engine, ContainerRun(image=sys.argv[2], argv=("sleep", "600"))) as container:
    assert engine.run_command("start", container.name).ok
    print(container.name, flush=True)
    sys.stdin.read()
"""


@pytest.mark.sampled
def test_the_container_of_a_killed_process_is_found_and_removed_and_no_other(
    engine: Engine, plan: Line, base_image: str
) -> None:
    words = [sys.executable, "-c", KILLED, engine.kind.value, base_image]
    process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        with Container(engine, plan("sleep 600")) as mine:
            assert {name, mine.name} <= names(engine), "whoever runs is left alone"
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=CEILING)
            assert run(engine, plan("true")).ok
            until(lambda: name not in names(engine), "it is removed, by another process of kiln perhaps")
            assert mine.name in names(engine)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.sampled
def test_the_container_of_a_machine_that_restarted_is_removed_and_another_machines_is_not(
    engine: Engine, plan: Line
) -> None:
    earlier, elsewhere = (f"{Container(engine, plan('true')).name}-{word}" for word in ("earlier", "elsewhere"))
    owners = {
        earlier: dataclasses.replace(OwnerProcess.of_this_process(), boot="earlier"),
        elsewhere: dataclasses.replace(OwnerProcess.of_this_process(), machine="elsewhere", pid=1 << 22),
    }
    try:
        for name, owner in owners.items():
            result = engine.run_command(
                *create_command(engine, plan("true"), name=name, labels={LABEL: str(owner)})[1:]
            )
            assert result.ok, result.tail
        remove_orphaned_containers(engine)
        until(lambda: earlier not in names(engine), "it is removed, by another process of kiln perhaps")
        assert elsewhere in names(engine)
    finally:
        for name in owners:
            engine.run_command("rm", "--force", name)


def test_a_missing_image_is_an_error_with_a_hint(engine: Engine) -> None:
    with pytest.raises(DownloadFailed, match="cannot get the image localhost/kiln-none:1") as caught:
        run(engine, ContainerRun(image="localhost/kiln-none:1", argv=("true",)))
    assert "kiln image base --tag localhost/kiln-none:1" in caught.value.hint
