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

from kiln.errors import UnsupportedPython, UsageError
from kiln.fleet.detached import attach_key
from kiln.fleet.detached.controller_client import connected
from tests.integration.fleet.helpers import (
    CONFIGS,
    HELD,
    PLANTED,
    ROOT,
    assert_whole,
    docker,
    existing_machines,
    hold,
    ledgered,
    let_go,
    words,
)
from tests.waiting import until

pytestmark = [
    pytest.mark.needs("docker", "ssh", "ssh-keygen", "rsync", "nginx"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason=f"{UnsupportedPython.__name__}: Ansible needs Python 3.11"),
]
CONFIG = CONFIGS[-1]
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
    with connected(attach_key.read(path), os.environ) as connection:
        call = (*connection.words, "cat /etc/passwd")
        shell = subprocess.run(call, text=True, capture_output=True, check=False)
    assert (shell.returncode, shell.stdout) == (2, "")
    assert "does not allow" in shell.stderr


def test_a_detached_run_outlives_this_computer_and_waits_until_it_is_collected(
    small: Path, tmp_path: Path, workers: None
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    hold(small)
    with existing_machines(tmp_path, 2) as (worker, controller):
        hosts = [{key: host[key] for key in host if key != "name"} for host in (worker, controller)]
        told = tmp_path / "hosts.json"
        told.write_text(json.dumps({"kiln_static_hosts": hosts}))
        common = ("--provider", "static", "--vars", str(told), "--workers", "1", "--container", "none", "--poll", "1s")
        begun = fleet(small, "run", CONFIG, *common, "--detach", "--controller", controller["address"], "--json")
        assert begun.returncode == 0, begun.stderr
        run, path = (json.loads(begun.stdout)[name] for name in ("run", "key"))
        key = Path(path).rename(elsewhere / "key.json")  # from here on this computer knows nothing but the key

        assert_attached_until_ctrl_c(words(elsewhere, "attach", "--key", str(key)))
        assert fleet(elsewhere, "collect", "--key", str(key)).returncode == UsageError.exit_code, "it is not over"
        assert_no_secrets(worker["name"], controller["name"])
        assert_no_shell(key)
        docker("exec", controller["name"], "systemctl", "kill", "--signal=KILL", "kiln-controller")  # it resumes
        let_go(worker["name"])
        (small / HELD).unlink()

        until(lambda: state_of(elsewhere, key)["process"] == "ended", "the run is over", pause=1)
        assert f"{run}: detached on" in fleet(elsewhere, "status", "--key", str(key)).stdout
        assert "compiling with" in fleet(elsewhere, "logs", "--key", str(key), CONFIG).stdout
        assert docker("exec", worker["name"], "sh", "-c", LEFT) == "", "the worker is released"

        collected = fleet(small, "collect", "--key", str(key))
        assert collected.returncode == 0, collected.stderr
        assert "2 packages collected" in collected.stderr
        assert "has ended" in collected.stderr
        assert docker("exec", controller["name"], "sh", "-c", LEFT) == "", "so is the controller"
    (record,) = ledgered(small)
    assert record.id == run
    assert [(job.config, job.attempt) for job in record.jobs] == [(CONFIG, 1)], "resumed, not built again"
    assert_whole(small, [CONFIG])
    assert PLANTED not in "".join(file.read_text(errors="replace") for file in small.rglob("*.log"))
