"""Strikes against a run's workers and their services, for the faults of `tests.trials.fault_kinds`."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING

from tests.integration.fleet import test_runs
from tests.integration.fleet.helpers import containers, docker, ledgered
from tests.waiting import until

if TYPE_CHECKING:
    from tests.trials.fault_kinds import Trial

LOSS = "INPUT -p tcp --dport 22 -m statistic --mode random --probability 0.3 -j DROP"
# A file system that has an error is remounted like this. Files that are open can still be written here.
READ_ONLY = """set -e
for place in /etc /home /opt /root /usr /var; do mount --rbind $place $place; mount -o remount,ro,bind $place; done
"""
CACHE_KILLS = 8


def lose_packets(trial: Trial) -> None:
    """Drop three of ten packets of ssh to all workers, for longer than the timeout."""
    workers = containers(trial.root)
    for worker in workers:
        docker("exec", worker, "sh", "-c", f"iptables -w -I {LOSS}")
    time.sleep(40)
    for worker in workers:  # one that is done may be gone already
        undo = ("docker", "exec", worker, "sh", "-c", f"iptables -w -D {LOSS}")
        subprocess.run(undo, check=False, capture_output=True)


def change_host_key(trial: Trial) -> None:
    """Give a worker's sshd another host key, and end its connections."""
    change = "rm /etc/ssh/ssh_host_*; ssh-keygen -A; pkill -9 sshd; systemctl reset-failed ssh; systemctl restart ssh"
    docker("exec", trial.worker(), "sh", "-c", change)


def make_read_only(trial: Trial) -> None:
    """Make the disk of a worker read-only, as the kernel does after an error of the disk."""
    docker("exec", trial.worker(), "sh", "-c", READ_ONLY)


def double_worker(trial: Trial) -> None:
    """Start a second machine of a worker's tags, and kill the other worker; the second one must be ended in the run."""
    worker = trial.worker()
    second = f"{worker}-second"
    labels = json.loads(docker("inspect", "--format", "{{json .Config.Labels}}", worker))
    image = docker("inspect", "--format", "{{.Image}}", worker).strip()
    tags = (f"--label={name}={value}" for name, value in labels.items())
    docker("run", "--detach", "--rm", f"--name={second}", *tags, "--entrypoint=sleep", image, "3600")
    docker("kill", trial.dice.choice([name for name in containers(trial.root) if name not in {worker, second}]))
    until(lambda: second not in containers(trial.root), "the second machine is ended", trial.process)


def use_cache(trial: Trial) -> None:
    """Let the compiles use a cache of the run, whose server is nginx."""
    test_runs.with_cache(trial.root)
    (trial.shelf / "cache.json").rename(trial.shelf / "vars.json")


def kill_cache(trial: Trial) -> None:
    """Kill the server of the run's cache again and again."""
    (run,) = ledgered(trial.root)
    strike = ("docker", "exec", f"kiln-{run.id}-cache", "sh", "-c")
    subprocess.run((*strike, "systemctl kill --signal=KILL kiln-cache && pkill -9 nginx"), check=True)
    for _ in range(CACHE_KILLS - 1):
        time.sleep(3)
        subprocess.run((*strike, "systemctl kill --signal=KILL kiln-cache; pkill -9 nginx"), check=False)
