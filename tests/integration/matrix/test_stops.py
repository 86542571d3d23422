"""Builds that are killed or stopped, and what is left of them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from kiln.base import files, process_table
from kiln.base.errors import AlreadyRunning, Interrupted
from kiln.container.engine import choose_engine
from kiln.recipe.feedstock import Feedstock
from kiln.state.results import ConfigState
from kiln.state.store.layout import ArtifactLayout
from tests.integration.matrix.helpers import (
    CPU_311,
    HOLD,
    assert_whole,
    kiln,
    packages,
    replace,
    report,
    started,
    states,
    wait_for,
    working_in,
)
from tests.waiting import until

pytestmark = pytest.mark.slow("a build is killed or stopped, and continued")


def nobody_builds(root: Path, config: str) -> bool:
    """Return whether a config's lock is free: its process has tidied up, its container is gone."""
    try:
        with files.held_lock_file(ArtifactLayout.for_feedstock(Feedstock(root=root)).lock_file(config)):
            return True
    except AlreadyRunning:
        return False


def test_a_killed_run_continues_where_it_was_and_leaves_nothing(small: Path, where: str) -> None:
    replace(small, "install-app.sh", "mkdir", f"{HOLD}mkdir")
    (small / ".ci_support" / "hold").touch()
    with started(small, CPU_311, "--container", where) as process:
        wait_for(process, "build small")
        process.send_signal(signal.SIGKILL)
        process.wait()
    until(lambda: nobody_builds(small, CPU_311), "the config's process ends")  # its script would go on without the hold
    assert states(small) == {CPU_311: ConfigState.INTERRUPTED}
    assert packages(small) == set()
    (small / ".ci_support" / "hold").unlink()
    ended = kiln(small, CPU_311, "--container", where)
    assert ended.returncode == 0, ended.stderr
    (config,) = report(small).configs
    assert {step.title: step.reused for step in config.steps if step.title[:4] in {"comp", "buil"}} == {
        "compile": True,
        "build libsmall": True,
        "build small": False,
    }
    assert_whole(small)
    if where != "none":
        engine = choose_engine(where, env=os.environ).engine
        assert engine is not None
        running = engine.run_command("ps", "--all", "--filter", "label=kiln.owner", "--format", "{{.Mounts}}").stdout
        assert str(small) not in running


@pytest.mark.sampled
def test_a_kill_of_all_processes_leaves_none(small: Path) -> None:
    """As when the machine runs out of memory: the run, the config's process and the builder, each with kill -9."""
    replace(small, "install-app.sh", "mkdir", f"{HOLD}mkdir")
    (small / ".ci_support" / "hold").touch()
    with started(small, CPU_311, "--container", "none") as process:
        wait_for(process, "build small")
        until(lambda: any(is_script(pid) for pid in below(process.pid)), "the script runs")
        for pid in [*below(process.pid), process.pid]:
            if not is_script(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    (small / ".ci_support" / "hold").unlink()
    assert kiln(small, CPU_311, "--container", "none").returncode == 0
    assert [pid for pid in working_in(small) if pid != os.getpid()] == []


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("number", "whom"),
    [
        (signal.SIGINT, "run"),
        (signal.SIGTERM, "run"),
        (signal.SIGKILL, "run"),
        (signal.SIGTERM, "config"),
        (signal.SIGKILL, "config"),
        (signal.SIGKILL, "both"),
    ],
)
def test_whoever_is_ended_takes_the_script_along(small: Path, number: signal.Signals, whom: str) -> None:
    """On the host, where no container ends it."""
    replace(small, "install-app.sh", "mkdir", f"{HOLD}mkdir")
    (small / ".ci_support" / "hold").touch()
    with started(small, CPU_311, "--container", "none") as process:
        wait_for(process, "build small")
        until(lambda: any(is_script(pid) for pid in below(process.pid)), "the script runs")
        (config,) = (pid for pid in below(process.pid) if "kiln.run.config_process" in command_line(pid))
        for pid in {"run": (process.pid,), "config": (config,), "both": (config, process.pid)}[whom]:
            os.kill(pid, number)  # the run last: it is this process's child, and stays there to be killed
        process.communicate()
    until(lambda: working_in(small) == [], "no process is at work")


def below(root: int) -> list[int]:
    """The processes below one, the deepest first."""
    return [deeper for pid in process_table.child_pids(root) for deeper in (*below(pid), pid)]


def is_script(pid: int) -> bool:
    """Return whether a process is the script of the output ``small``, by itself."""
    return command_line(pid).startswith("bash -e") and "install-app" in command_line(pid)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@pytest.mark.parametrize("numbers", [(signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)])
def test_a_stopped_run_ends_its_configs_and_keeps_what_is_finished(
    small: Path, numbers: tuple[signal.Signals, ...]
) -> None:
    replace(small, "build.sh", "mkdir", f'if [ "$interpreter" = 3.12 ]; then {HOLD.strip()}; fi\nmkdir')
    (small / ".ci_support" / "hold").touch()
    with started(small, "--all", "-j", "2", "--container", "none") as process:
        said = "".join(wait_for(process, "3.12: compile"))
        for number in numbers:
            process.send_signal(number)
        assert process.stderr is not None
        said += process.stderr.read()
        process.wait()
    assert process.returncode == Interrupted.exit_code
    told = states(small)
    assert ConfigState.INTERRUPTED in told.values()
    assert ConfigState.RUNNING not in told.values()
    assert sum("✓" in line for line in said.splitlines()) == sum(state is ConfigState.DONE for state in told.values())
    (small / ".ci_support" / "hold").unlink()
    assert kiln(small, "--all", "--container", "none").returncode == 0
    assert set(states(small).values()) <= {ConfigState.DONE, ConfigState.CACHED}
