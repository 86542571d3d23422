"""Detach runs to controllers of a cloud, whose servers are containers, and compare with an undisturbed run.

    .venv/bin/python -m tests.trials.detached_cloud [--only TEXT ...]

The clouds are a small OpenStack of our own, which speaks HTTP with the real openstacksdk, and moto's EC2, which does so
with the real boto3. Each trial starts `kiln fleet run --detach`. From then on, another home directory has the run's key
and no credentials. The controller asks the cloud for its worker by itself, builds a config of the small feedstock
there, and deletes the worker; its packages wait; it deletes itself last. Each trial prints a line of a table.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import WorkersLost
from tests.cloud_machines import address_service, gateway
from tests.integration.fleet import test_detached
from tests.integration.fleet.helpers import PLANTED, docker, hold, let_go, trust_this_computers_authorities, words
from tests.moto_machines import moto_machines
from tests.openstack_machines import openstack_machines
from tests.trials.fleet import make_image
from tests.trials.kills import ENVIRONMENT, ROOT, SMALL
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.cloud_machines import MachineCall, MachineCloud

CONFIG = test_detached.CONFIG
PASSWORD = "planted-password-0452"
HEAD = "| trial | seconds | machines | packages | what went wrong |\n|---|---|---|---|---|"
# The file in which systemd reads the credentials, and the variables of the processes that it starts with them.
ALLOWED = ("/etc/kiln-controller-environment",)


@dataclass(kw_only=True)
class DetachedRun:
    """A detached run: ``start`` is the feedstock where it began, ``elsewhere`` a folder that has its key alone."""

    cloud: MachineCloud
    run: str
    start: Path
    elsewhere: Path
    credentials: dict[str, str]
    variables: Path

    @property
    def controller(self) -> str:
        """The name of the controller."""
        return f"kiln-{self.run}-controller"

    @property
    def worker(self) -> str:
        """The name of the first worker."""
        return f"kiln-{self.run}-1"

    def fleet(self, action: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the key, elsewhere."""
        call = self.fleet_words(action, *more)
        return subprocess.run(call, cwd=ROOT, env=self.environment, text=True, capture_output=True, check=False)

    def fleet_words(self, action: str, *more: str) -> tuple[str, ...]:
        """Return a command with the key, elsewhere."""
        return words(self.elsewhere, action, "--key", str(self.elsewhere / "key.json"), *more)

    @property
    def environment(self) -> dict[str, str]:
        """The environment elsewhere: another home, and no credentials."""
        return {**without_credentials(), "HOME": str(self.elsewhere)}

    def at_home(self, action: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Run a command where the run began, with the credentials."""
        environment = {**without_credentials(), **self.credentials}
        call = words(self.start, action, *more, "--vars", str(self.variables))
        return subprocess.run(call, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)

    def state(self) -> dict[str, Any]:
        """Return the state of the run, as its controller has it."""
        answer = self.fleet("status", "--json")
        return json.loads(answer.stdout) if answer.returncode == 0 else {"process": answer.stderr}

    def until_building(self) -> None:
        """Wait until the worker builds."""
        until(lambda: self.worker in self.cloud.names, "the controller has asked for a worker", pause=1)
        until(lambda: is_building(self.state()), "the worker builds", pause=1)

    def until_ended(self) -> None:
        """Wait until the run has ended, and its packages wait."""
        until(lambda: self.state()["process"] == "ended", "the run has ended", pause=1)

    def let_go(self) -> None:
        """Let the build go on."""
        let_go(self.cloud.container(self.worker))


def without_credentials() -> dict[str, str]:
    """Return this program's environment without variables of clouds."""
    return {name: text for name, text in ENVIRONMENT.items() if not name.startswith(("OS_", "AWS_"))}


def is_building(state: dict[str, Any]) -> bool:
    """Return whether a job runs."""
    return any(job["state"] == "running" for job in (state.get("fleet") or {}).get("jobs", ()))


def begun(folder: Path, cloud: MachineCloud, addresses: str, *more: str) -> DetachedRun:
    """Start a detached run whose compile waits, and copy its key elsewhere."""
    start = Path(shutil.copytree(SMALL, folder / "small-feedstock"))
    hold(start)
    elsewhere, variables = folder / "elsewhere", folder / "variables.json"
    elsewhere.mkdir()
    told = {**cloud.variables, "kiln_address_service": addresses, "kiln_poll_interval": 1}
    variables.write_text(json.dumps(told))
    credentials = {**cloud.environment(PASSWORD), "BINSTAR_TOKEN": PLANTED, "XDG_CONFIG_HOME": str(folder / "config")}
    environment = {**without_credentials(), **credentials}
    options = ("--provider", cloud.provider, "--type", "compute-8", "--workers", "1", "--container", "none")
    call = words(start, "run", CONFIG, *options, "--poll", "1s", "--vars", str(variables), "--detach", "--json", *more)
    ended = subprocess.run(call, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    shutil.copy2(answer["key"], elsewhere / "key.json")
    return DetachedRun(
        cloud=cloud,
        run=answer["run"],
        start=start,
        elsewhere=elsewhere,
        credentials=credentials,
        variables=variables,
    )


# The trials: each returns what went wrong


def collected(detached: DetachedRun) -> list[str]:
    """Attach, look and collect from elsewhere; the controller ends itself last."""
    cloud = detached.cloud
    home = ("env", f"HOME={detached.elsewhere}")
    test_detached.assert_attached_until_ctrl_c((*home, *detached.fleet_words("attach")))
    controller, address = cloud.container(detached.controller), cloud.address(detached.controller)
    problems = secrets_outside(cloud.container(detached.worker), controller)
    ranges = cloud.ssh_ranges(f"kiln-{detached.run}")
    problems += [] if ranges == {f"{address}/32"} else [f"the worker may be reached from {ranges}"]
    detached.let_go()
    detached.until_ended()
    problems += [] if cloud.names == [detached.controller] else [f"servers while packages wait: {cloud.names}"]
    problems += [] if "compiling with" in detached.fleet("logs", CONFIG).stdout else ["no log"]
    ended = detached.fleet("collect")
    problems += [] if ended.returncode == 0 else [ended.stderr]
    until(lambda: not cloud.names, "the controller has ended itself", seconds=180, pause=0.5)
    own = [(call.action, call.machine) for call in cloud.calls if call.caller == address]
    expected = [("created", detached.worker), ("deleted", detached.worker), (cloud.last_action, detached.controller)]
    problems += [] if own == expected else [f"the controller has {own}"]
    problems += [] if cloud.calls[-1].alone else ["not by the credential for itself alone"]
    return problems


def never_collected(detached: DetachedRun) -> list[str]:
    """Nobody collects: the controller ends itself when the time for that is over."""
    detached.until_building()
    detached.let_go()
    until(lambda: not detached.cloud.names, "the controller has ended itself", pause=0.5)
    last = detached.cloud.calls[-1]
    return [] if (last.machine, last.alone) == (detached.controller, True) else [f"the last was {last}"]


def stopped(detached: DetachedRun) -> list[str]:
    """The run is stopped with the key, from elsewhere, while it builds."""
    detached.until_building()
    ended = detached.fleet("down")
    until(lambda: not detached.cloud.names, "the controller has ended itself", seconds=180, pause=0.5)
    return [] if ended.returncode == 0 else [ended.stderr]


def deleted(detached: DetachedRun) -> list[str]:
    """Somebody deletes the controller: `attach` at home says so, and `down` deletes the worker."""
    detached.until_building()
    detached.cloud.delete(detached.controller)
    ended = detached.at_home("attach", detached.run)
    return (
        [] if ended.returncode == WorkersLost.exit_code else [f"attach ended with {ended.returncode}: {ended.stderr}"]
    )


TRIALS: dict[str, tuple[Callable[[DetachedRun], list[str]], tuple[str, ...], int]] = {
    "collected from elsewhere": (collected, (), 2),
    "never collected": (never_collected, ("--keep", "15s"), 0),
    "stopped from elsewhere": (stopped, (), 0),
    "controller deleted": (deleted, (), 0),
}
CLOUDS = ("OpenStack", "EC2")


def secrets_outside(worker: str, controller: str) -> list[str]:
    """Return where secrets are that should not be there: the controller has the cloud's password, nobody another."""
    problems = []
    for name, word, allowed in (
        (controller, PLANTED, ()),
        (worker, PLANTED, ()),
        (worker, PASSWORD, ()),
        (controller, PASSWORD, ALLOWED),
    ):
        look = f"grep -rIl [p]{word[1:]} {test_detached.PLACES} /proc/[0-9]*/cmdline 2>/dev/null || true"
        places = docker("exec", name, "bash", "-c", look).split()
        problems += [f"a secret in {place} on {name}" for place in places if place not in allowed]
    return problems


def main() -> None:
    """Run the trials and print the table; the exit code is 1 when one of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="TEXT", help="take only trials whose names contain TEXT")
    options = parser.parse_args()
    make_image()
    print(HEAD, flush=True)
    wrong = 0
    for name in (f"{cloud}: {trial}" for cloud in CLOUDS for trial in TRIALS):
        if any(text in name for text in options.only or [""]):
            with tempfile.TemporaryDirectory(prefix="kiln-detached-") as folder:
                wrong += not tried(name, Path(folder))
    print(f"\n{wrong} wrong")
    sys.exit(bool(wrong))


@contextmanager
def cloud_of(name: str, folder: Path) -> Iterator[MachineCloud]:
    """Yield a cloud by its name; its machines can reach the package index as this computer does."""
    on_boot = trust_this_computers_authorities
    if name == "EC2":
        with moto_machines(folder, on_boot=on_boot) as cloud:
            yield cloud
    else:
        with openstack_machines(folder, password=PASSWORD, on_boot=on_boot) as openstack:
            yield openstack


def tried(name: str, folder: Path) -> bool:
    """Carry out a trial and print its line; return whether all went well."""
    place, _, kind = name.partition(": ")
    trial, more, count = TRIALS[kind]
    with cloud_of(place, folder / "cloud") as cloud, address_service(gateway()) as addresses:
        detached = begun(folder, cloud, addresses, *more)
        began = time.monotonic()
        problems = trial(detached)
        seconds = time.monotonic() - began
        packages = sorted(path.name for path in detached.elsewhere.rglob("*.conda"))
        problems += [] if len(packages) == count else [f"{len(packages)} packages"]
        ended = detached.at_home("down", detached.run)  # what remains at the cloud, such as groups
        problems += [] if ended.returncode == 0 else [f"down: {ended.stderr}"]
        left = cloud.leftovers()
        problems += [f"left at the cloud: {left}"] if left else []
    cells = (name, f"{seconds:.0f}", shown(cloud.calls, detached), str(len(packages)), "; ".join(problems) or "nothing")
    print(f"| {' | '.join(cells)} |", flush=True)
    return not problems


def shown(calls: Sequence[MachineCall], detached: DetachedRun) -> str:
    """Return what happened to the machines in short."""
    names = {detached.controller: "controller", detached.worker: "worker"}
    return ", ".join(f"{names.get(call.machine, call.machine)} {call.action}" for call in calls)


if __name__ == "__main__":
    main()
