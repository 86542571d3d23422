"""The overhead of the fleet over building by hand: the same configs on two machines, over plain ssh and by the fleet.

The machines are containers that boot as machines do. Each run finds them as the one before did: up, with kiln's
environment in place, and with nothing of a run on them.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import bootstrap
from tests import shared_inputs
from tests.bench.timing import ROOT, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.timing import Row

SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"
ROUNDS, MOST = 3, 20.0
RUN = f"hand-{os.getpid()}"
NAMES = f"kiln-{RUN}-1", f"kiln-{RUN}-2"
PROJECT = "/var/lib/kiln/project"
SENT = ("build-locally.py", "kiln", "requirements")
AS_KILN = f"sudo -u kiln env HOME=/var/lib/kiln sh -c 'cd {PROJECT} && exec python3 build-locally.py %s'"
SAVE = "sudo cp -a /var/lib/kiln /var/lib/saved"
RESTORE = """sudo sh -c '
    id kiln >/dev/null 2>&1 || useradd --system --home-dir /var/lib/kiln --shell /bin/bash kiln
    rm -rf /var/lib/kiln && cp -a /var/lib/saved /var/lib/kiln && chown -R kiln: /var/lib/kiln'"""


def rows() -> list[Row]:
    """Build the matrix in both ways in turn, round after round, so that other work slows both alike."""
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder, machines(Path(folder)) as site:
        for name in NAMES:
            site.send(name)
            site.ssh(name, AS_KILN % "--help >/dev/null")
            site.ssh(name, SAVE)
        took = [(site.timed(site.by_hand), site.timed(site.by_fleet)) for _ in range(ROUNDS)]
    hand, fleet = (statistics.median(item) for item in zip(*took, strict=True))
    added = statistics.median(one - other for other, one in took)
    return [
        (f"{len(site.configs)} small configs on two machines by hand", f"{hand:.1f} s", ""),
        ("  by kiln fleet run, machines prepared and left again", f"{fleet:.1f} s", ""),
        ("  which adds", f"{added:.1f} s", f"{MOST:.0f} s"),
    ]


class Machines:
    """Two machines that are up, and a feedstock to build on them."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        self.feedstock = Path(shutil.copytree(SMALL, folder / "small-feedstock"))
        self.configs = sorted(file.stem for file in (self.feedstock / ".ci_support").glob("*.yaml"))
        self.home = folder / "home"
        self.home.mkdir()

    def play(self, book: str) -> None:
        """Run a playbook on the machines' provider."""
        player = bootstrap.ensure_fleet_environment(ROOT).with_name("ansible-playbook")
        told = {"kiln_provider": "local", "kiln_run": RUN, "kiln_count": 2, "kiln_run_dir": str(self.run)}
        quiet([player, "-e", json.dumps(told), ROOT / "ansible" / f"{book}.yml"])

    def ssh(self, name: str, words: str) -> None:
        """Run a command on a machine."""
        quiet(["ssh", "-F", self.run / "ssh" / f"{name}.config", name, words])

    def rsync(self, *words: str | Path, name: str) -> None:
        """Send or fetch files."""
        ssh = f"ssh -F {shlex.quote(str(self.run / 'ssh' / f'{name}.config'))}"
        quiet(["rsync", "-a", "--exclude=__pycache__", "--rsync-path=sudo rsync", f"--rsh={ssh}", *words])

    def send(self, name: str) -> None:
        """Send what builds, and the feedstock."""
        parts = [ROOT / part for part in SENT] + [self.feedstock / part for part in ("conda-forge.yml", "recipe")]
        self.rsync(*parts, self.feedstock / ".ci_support", f"{name}:{PROJECT}/", name=name)
        self.ssh(name, f"sudo chown -R kiln: {PROJECT}")

    def timed(self, way: Any) -> float:
        """Bring the machines to where they were, and time one way of building."""
        for name in NAMES:
            self.ssh(name, RESTORE)
        shutil.rmtree(self.feedstock / "build_artifacts", ignore_errors=True)
        return seconds(way)

    def by_hand(self) -> None:
        """Send, build and fetch on both machines at once, each with every other config."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._on_one, NAMES, (self.configs[::2], self.configs[1::2])))

    def _on_one(self, name: str, configs: list[str]) -> None:
        self.send(name)
        for config in configs:
            self.ssh(name, AS_KILN % f"{config} --container none --json >/dev/null")
        self.rsync(f"{name}:{PROJECT}/build_artifacts/linux-64", self.home / name, name=name)

    def by_fleet(self) -> None:
        """The same by one command; the machines are configured as by a user who owns them."""
        told = self.feedstock.parent / "machines.json"
        told.write_text(json.dumps({"kiln_static_hosts": [self._host(name) for name in NAMES]}))
        argv = (sys.executable, "-m", "kiln", "-C", self.feedstock, "fleet", "run", "--provider", "static", "--all")
        quiet([*argv, "--workers", "2", "--container", "none", "--vars", told])

    def _host(self, name: str) -> dict[str, str]:
        known = json.loads((self.run / "inventory" / f"{name}.json").read_text())
        _, kind, key = (self.run / "keys" / f"{name}.known_hosts").read_text().split()[:3]
        address = known["kiln_machines"]["hosts"][name]["kiln_machine"]["address"]
        return {
            "address": address,
            "user": "fleet",
            "key": str(self.run / "keys" / "run"),
            "known_hosts": f"{kind} {key}",
        }


@contextmanager
def machines(folder: Path) -> Iterator[Machines]:
    """Provide two machines that answer, and tear them down afterwards."""
    shared_inputs.worker_image(shared_inputs.docker_engine())
    site = Machines(folder)
    try:
        site.play("provision")
        for name in NAMES:
            subprocess.run(["docker", "exec", name, "cloud-init", "status", "--wait"], check=False, capture_output=True)
        yield site
    finally:
        site.play("down")


def quiet(argv: list[Any]) -> None:
    """Run a command that must succeed; what it says is shown only where it fails."""
    done = subprocess.run(list(map(str, argv)), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(map(str, argv))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
