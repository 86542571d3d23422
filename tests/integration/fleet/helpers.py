"""Fleets of containers on this computer: kiln's commands, and what is left of their workers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import bootstrap
from kiln.conda.channel import LocalChannel
from kiln.conda.package_reader import read_info_json
from kiln.fleet.ansible import playbooks
from kiln.fleet.model import FleetRun, JobState, WorkerState
from kiln.fleet.records import FleetLedger
from kiln.state.results import ConfigState
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.state.results import MatrixReport

ROOT = Path(__file__).parents[3]
SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"
CONFIGS = sorted(file.stem for file in (SMALL / ".ci_support").glob("*.yaml"))
PLANTED = "planted-5f2b7c1d9e"
# While this is on a machine, its compiles wait. It is not part of the recipe, so that configs before and after it is
# gone are of the same, and take each other's packages.
HELD = ".ci_support/held"
HOLD = f'while [ -e "$RECIPE_DIR/../{HELD}" ]; do sleep 0.2; done\n'
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
SMI = """#!/bin/sh
case $1 in
-L) echo 'GPU 0: Tesla T4 (UUID: GPU-1)' ;;
*) echo '550.54.15, Tesla T4, 7.5, 15360' ;;
esac
"""


@contextmanager
def existing_machines(folder: Path, count: int) -> Iterator[list[dict[str, str]]]:
    """Machines that exist already, as hosts of the static provider's: containers that boot as machines do."""
    run = f"e{os.getpid()}"
    place = folder / "existing"
    told = {"kiln_provider": "local", "kiln_run": run, "kiln_run_dir": str(place), "kiln_count": count}
    play = (str(bootstrap.ensure_fleet_environment(ROOT).with_name("ansible-playbook")), "-e", json.dumps(told))
    try:
        subprocess.run((*play, str(ROOT / "ansible" / "provision.yml")), check=True, capture_output=True, cwd=ROOT)
        yield [_existing(place, f"kiln-{run}-{number}") for number in range(1, count + 1)]
    finally:
        subprocess.run((*play, str(ROOT / "ansible" / "down.yml")), check=True, capture_output=True, cwd=ROOT)


def _existing(folder: Path, name: str) -> dict[str, str]:
    """Return a machine once it has booted, without its lease: it is nobody's."""
    facts = json.loads((folder / "inventory" / f"{name}.json").read_text())["kiln_machines"]["hosts"][name]
    _, kind, key = (folder / "keys" / f"{name}.known_hosts").read_text().split()[:3]
    until(lambda: "done" in docker("exec", name, "sh", "-c", "cloud-init status || true"), "it has booted")
    docker("exec", name, "systemctl", "disable", "--now", "kiln-lease.timer")
    docker("exec", name, "rm", "-f", "/etc/kiln-lease")
    trust_this_computers_authorities(name)
    address = facts["kiln_machine"]["address"]
    host = {"address": address, "user": "fleet", "known_hosts": f"{kind} {key}"}
    return {**host, "key": str(folder / "keys" / "run"), "name": name}


def trust_this_computers_authorities(name: str) -> None:
    """Let pip on a machine reach the package index as it does here, through a proxy perhaps.

    A controller makes the fleet's environment; and the environment that the image has for builds is removed when a run
    releases the machine, so that the next one makes it again.
    """
    if AUTHORITIES.exists():
        docker("cp", "--follow-link", str(AUTHORITIES), f"{name}:{AUTHORITIES}")
        docker("exec", name, "sh", "-c", f"printf '[global]\\ncert={AUTHORITIES}\\n' >/etc/pip.conf")


def words(root: Path, action: str, *more: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "kiln", "-C", str(root), "fleet", action, *more)


def docker(*arguments: str) -> str:
    return subprocess.run(("docker", *arguments), check=True, capture_output=True, text=True).stdout


def ledgered(root: Path) -> tuple[FleetRun, ...]:
    path = root / "build_artifacts" / "ledger.sqlite"
    if not path.exists():
        return ()
    with FleetLedger(path) as ledger:
        return ledger.fleet_runs()


def report(root: Path) -> MatrixReport:
    with FleetLedger(root / "build_artifacts" / "ledger.sqlite") as ledger:
        result = ledger.run_report()
    assert result is not None
    return result


def containers(root: Path) -> list[str]:
    """The machines that there are of a feedstock's runs, stopped ones too."""
    names = []
    for run in ledgered(root):
        names += docker("ps", "--all", "--format", "{{.Names}}", "--filter", f"label=kiln-run={run.id}").split()
    return names


def building(root: Path) -> dict[str, str]:
    """The configs whose builds run, each with its machine."""
    return {job.config: job.worker for run in ledgered(root) for job in run.jobs if job.state is JobState.RUNNING}


def hold(root: Path) -> None:
    """Let compiles wait on the machines until they are let go."""
    (root / HELD).touch()
    script = root / "recipe" / "build.sh"
    script.write_text(script.read_text().replace("mkdir -p dist", f"{HOLD}mkdir -p dist"))


def hold_only(root: Path, config: str) -> None:
    """Let the compile of one config wait, wherever it is built."""
    interpreter, cuda = config.rpartition("interpreter")[2], "None" if "None" in config else "12.9"
    script = root / "recipe" / "build.sh"
    waits = f'if [ "$interpreter-$cuda_compiler_version" = "{interpreter}-{cuda}" ]; then sleep 600; fi\n'
    script.write_text(script.read_text().replace("mkdir -p dist", f"{waits}mkdir -p dist"))


def install_gpu(worker: str) -> None:
    """Install a program that stands in for the driver's."""
    place = "/usr/local/bin/nvidia-smi"
    docker("exec", worker, "sh", "-c", f"printf %s {shlex.quote(SMI)} >{place}; chmod 755 {place}")


def let_go(worker: str) -> None:
    docker("exec", worker, "rm", "-f", f"/var/lib/kiln/project/{HELD}")


def assert_given_back(root: Path) -> None:
    """Nothing of a run is left: no machine, no process, no key."""
    assert containers(root) == []
    for run in ledgered(root):
        folder = root / "build_artifacts" / "fleet" / run.id
        assert playbooks.find_processes_of_run(folder) == ()
        assert not list((folder / "keys").glob("*"))
        assert not (folder / "runner").exists()
        assert run.finished is not None
        assert {worker.state for worker in run.workers} <= {WorkerState.TERMINATED, WorkerState.REFUSED}


def assert_whole(root: Path, configs: list[str]) -> None:
    """The finished configs' packages are in the channel, can be read, and are those of its index."""
    channel = LocalChannel(root=root / "build_artifacts")
    names = {read_info_json(package, "index.json") and package.name for package in channel.packages()}
    index = json.loads((channel.root / "linux-64" / "repodata.json").read_text())
    assert set(index["packages.conda"]) == names
    done = {
        config.config: config
        for config in report(root).configs
        if config.state in {ConfigState.DONE, ConfigState.CACHED}
    }
    assert sorted(done) == sorted(configs)
    for config in done.values():
        assert len(config.packages) == 2
        assert {package.artifact.path.name for package in config.packages} <= names


def busy(worker: str) -> bool:
    """Return whether a worker builds."""
    return '"running"' in docker("exec", worker, "kiln-job", "status")
