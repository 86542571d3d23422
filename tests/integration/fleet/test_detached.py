"""A detached run: its controller is a machine of its own, and whoever has the run's key attaches to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import UnsupportedPython, UsageError
from kiln.fleet.detached import controller as detached_controller
from kiln.fleet.detached.controller import controller_connection
from kiln.fleet.records import TESTS_SUFFIX
from kiln.state.results import ConfigState
from tests.integration.fleet.helpers import (
    CONFIGS,
    HELD,
    PLANTED,
    ROOT,
    assert_whole,
    docker,
    existing_machines,
    hold,
    install_gpu,
    ledgered,
    let_go,
    report,
    words,
)
from tests.waiting import until

pytestmark = [
    pytest.mark.needs("docker", "ssh", "ssh-keygen", "rsync", "nginx"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason=f"{UnsupportedPython.__name__}: Ansible needs Python 3.11"),
]
CONFIG = CONFIGS[-1]
CUDA = next(config for config in CONFIGS if "12.9" in config)
# While this is on a machine, its tests of packages wait.
HELD_TESTS = "/etc/hold-tests"
KILL = ("systemctl", "kill", "--signal=KILL", "kiln-controller")
PLACES = "/etc /var/lib/kiln /usr/local /run /tmp /var/log"
LEFT = "ls -d /etc/kiln-* /var/lib/kiln /etc/systemd/system/kiln-* /usr/local/sbin/kiln-controller* 2>/dev/null || true"


def fleet(root: Path, action: str, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BINSTAR_TOKEN": PLANTED, "AWS_SECRET_ACCESS_KEY": PLANTED}
    call = words(root, action, *more)
    return subprocess.run(call, cwd=ROOT, text=True, capture_output=True, check=False, env=environment)


def state_of(root: Path, key: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(fleet(root, "status", "--key", str(key), "--json").stdout)
    return state


def assert_attached_until_ctrl_c(call: tuple[str, ...]) -> None:
    """Whoever attaches sees the build; Ctrl-C leaves it as it is."""
    argv = ("env", "--default-signal=INT", *call)
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "compile" in line:
                break
        process.send_signal(signal.SIGINT)
        assert "goes on" in process.stderr.read(), "".join(lines)


def assert_no_secrets(*names: str) -> None:
    """No secret of this computer is in a file or an argument on the machines."""
    # Not as a word of the search's own command line.
    look = f"grep -rIl [p]{PLANTED[1:]} {PLACES} /proc/[0-9]*/cmdline 2>/dev/null || true"
    for name in names:
        found = docker("exec", name, "bash", "-c", look).split()
        assert found == []


def assert_no_shell(path: Path) -> None:
    """The run's key opens the gate, and no shell."""
    with controller_connection(detached_controller.read_run_key(path), os.environ) as connection:
        call = (*connection.words, "cat /etc/passwd")
        shell = subprocess.run(call, text=True, capture_output=True, check=False)
    assert (shell.returncode, shell.stdout) == (2, "")
    assert "does not allow" in shell.stderr


def hold_tests(root: Path, tester: str) -> None:
    """Let the recipe's tests wait on one machine."""
    check = root / "recipe" / "check.sh"
    check.write_text(f"while [ -e {HELD_TESTS} ]; do sleep 0.2; done\n{check.read_text()}")
    docker("exec", tester, "touch", HELD_TESTS)


def detached(root: Path, machines: list[dict[str, str]]) -> tuple[str, Path]:
    """Detach a run that builds on the first machine and tests on the second to the third; return it with its key."""
    hosts: list[dict[str, Any]] = [{key: host[key] for key in host if key != "name"} for host in machines]
    hosts[1]["gpus"] = 1
    told = root.parent / "hosts.json"
    told.write_text(json.dumps({"kiln_static_hosts": hosts}))
    common = ("--provider", "static", "--vars", str(told), "--type", "static", "--workers", "1", "--gpu-tests")
    more = ("--container", "none", "--poll", "1s", "--detach", "--controller", hosts[2]["address"], "--json")
    begun = fleet(root, "run", CUDA, *common, *more)
    assert begun.returncode == 0, begun.stderr
    run, path = (json.loads(begun.stdout)[name] for name in ("run", "key"))
    return run, Path(path)


def assert_built_and_tested_once(root: Path, run: str, worker: str, tester: str) -> None:
    """The ledger has both jobs on the hosts of these addresses, and the cost; the report has the GPU."""
    (record,) = ledgered(root)
    assert record.id == run
    addresses = {each.name: each.id for each in record.workers}
    assert [(job.config, job.attempt, job.exit_code, addresses[job.worker]) for job in record.jobs] == [
        (CUDA, 1, 0, worker),
        (CUDA + TESTS_SUFFIX, 1, 0, tester),
    ], "resumed, not built again, nor is the worker that tests counted as lost"
    made = report(root)
    (entry,) = made.configs
    assert entry.state is ConfigState.CACHED, "it was built before the process was killed that tested it"
    assert entry.steps[-1].notes[1:] == ("Tesla T4 (7.5), driver 550.54.15",)
    assert made.cost is not None
    assert (made.cost.spent, made.cost.currency, made.cost.end > 0) == (0.0, "USD", True)
    assert_whole(root, [CUDA])


@pytest.mark.sampled
@pytest.mark.slow("a whole run of the fleet: machines are made, prepared, killed and tested on")
def test_a_detached_run_outlives_this_computer_and_waits_until_it_is_collected(
    small: Path, tmp_path: Path, workers: None
) -> None:
    """Its process is killed while it builds, and again while the packages are tested on a host with a GPU.

    A program stands in for the GPU's driver. Tests that a killed process had begun begin again.
    """
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    hold(small)
    with existing_machines(tmp_path, 3) as machines:
        worker, tester, controller = (machine["name"] for machine in machines)
        install_gpu(tester)
        hold_tests(small, tester)
        run, path = detached(small, machines)
        key = path.rename(elsewhere / "key.json")  # from here on this computer knows nothing but the key

        assert_attached_until_ctrl_c(words(elsewhere, "attach", "--key", str(key)))
        assert fleet(elsewhere, "collect", "--key", str(key)).returncode == UsageError.exit_code, "it is not over"
        assert_no_secrets(worker, controller)
        assert_no_shell(key)
        docker("exec", controller, *KILL)  # it resumes
        let_go(worker)
        (small / HELD).unlink()

        until(lambda: "check.sh" in docker("exec", tester, "ps", "axww"), "the tests run", pause=1)
        assert "compiling with" in fleet(elsewhere, "logs", "--key", str(key), CUDA).stdout
        docker("exec", controller, *KILL)
        docker("exec", tester, "rm", HELD_TESTS)

        until(lambda: state_of(elsewhere, key)["process"] == "ended", "the run is over", pause=1)
        assert f"{run}: detached on" in fleet(elsewhere, "status", "--key", str(key)).stdout
        assert "Tesla T4" in fleet(elsewhere, "logs", "--key", str(key), CUDA).stdout, "the log of the tests"
        for machine in (worker, tester):
            assert docker("exec", machine, "sh", "-c", LEFT) == "", f"{machine} is released"

        collected = fleet(small, "collect", "--key", str(key))
        assert collected.returncode == 0, collected.stderr
        assert "2 packages collected" in collected.stderr
        assert "has ended" in collected.stderr
        assert docker("exec", controller, "sh", "-c", LEFT) == "", "so is the controller"
    assert_built_and_tested_once(small, run, machines[0]["address"], machines[1]["address"])
    assert PLANTED not in "".join(file.read_text(errors="replace") for file in small.rglob("*.log"))
