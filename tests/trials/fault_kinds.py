"""The faults of `tests.trials.faults`: each strikes a run on real workers, at a random moment."""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.instance_metadata import MetadataServer
from tests.integration.fleet import test_runs
from tests.integration.fleet.helpers import building, containers, docker, ledgered
from tests.trials.kills import below, kill
from tests.waiting import until

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

SSH_BLOCK = "iptables -w -I INPUT -p tcp --dport 22 -j DROP"
SSH_OPEN = "iptables -w -D INPUT -p tcp --dport 22 -j DROP"
NOTICE = 40  # seconds between a worker's notice and its end: AWS gives 120
# Shifts the wall clock of the controller and its playbooks by the seconds in a file, once that is there.
CLOCK = """
import os, time
real, place = time.time, os.path.join(os.path.dirname(__file__), "shift")
def shifted():
    try:
        with open(place) as file:
            return real() + float(file.read())
    except OSError:
        return real()
time.time = shifted
"""
# Refuses one container after the flag is there.
REFUSE_ONE = """
if [ "$1" = run ] && rm "$(dirname "$0")/flag" 2>/dev/null; then echo "quota exceeded" >&2; exit 125; fi
exec "$real" "$@"
"""
SILENT_PROVIDER = """
if [ -e "$(dirname "$0")/flag" ]; then echo "Cannot connect to the Docker daemon" >&2; exit 1; fi
exec "$real" "$@"
"""
# Once, a package is cut in two on its way.
CUT_PACKAGE = """
"$real" "$@"; code=$?
for package in "${@: -1}"linux-64/*.conda; do
    [ -f "$package" ] && mkdir "$(dirname "$0")/flag" 2>/dev/null && truncate --size=300 "$package"
done
exit $code
"""
# Kills the controller, whose number is in the flag, while a worker is being removed.
KILL_AT_REMOVAL = """
if [ "$1" = rm ] && read -r controller <"$(dirname "$0")/flag" && rm "$(dirname "$0")/flag"; then kill -9 "$controller"
fi 2>/dev/null
exec "$real" "$@"
"""
LOSS = "INPUT -p tcp --dport 22 -m statistic --mode random --probability 0.3 -j DROP"
# A file system that has an error is remounted like this. Files that are open can still be written here.
READ_ONLY = """set -e
for place in /etc /home /opt /root /usr /var; do mount --rbind $place $place; mount -o remount,ro,bind $place; done
"""
CACHE_KILLS = 8


@dataclass(slots=True, kw_only=True)
class Trial:
    """A run that is under way in ``root``; ``shelf`` is a folder of its own, of which ``bin`` comes first on PATH.

    The messages of the run are copied to the folder ``logs``.
    """

    root: Path
    shelf: Path
    dice: random.Random
    logs: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    cleanups: list[Callable[[], object]] = field(default_factory=list)

    @property
    def flag(self) -> Path:
        """The file that lets a wrapped program fail."""
        return self.shelf / "bin" / "flag"

    @property
    def pid(self) -> int:
        """The process of the controller."""
        assert self.process is not None
        return self.process.pid

    def worker(self) -> str:
        """Return one of the workers, one that builds if there is one."""
        return self.dice.choice(sorted(building(self.root).values()) or sorted(containers(self.root)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault: ``strike`` brings it about.

    It strikes while builds run, or at ``any`` moment of the run. ``ends`` when the command may end by it and is run
    again. ``prepare`` comes before the run; ``program`` is wrapped by ``script``.
    """

    name: str
    strike: Callable[[Trial], object]
    any: bool = False
    ends: bool = False
    options: tuple[str, ...] = ()
    prepare: Callable[[Trial], object] = lambda _: None
    program: str = ""
    script: str = ""


def kill_build(trial: Trial) -> None:
    """Kill all processes of a build, as the kernel does that is out of memory."""
    config, worker = trial.dice.choice(sorted(building(trial.root).items()))
    docker("exec", worker, "systemctl", "kill", "--signal=KILL", f"kiln-build@{config}.service")


def freeze(trial: Trial) -> None:
    """Stop a worker for longer than the timeout, and let it go on."""
    worker = trial.worker()
    docker("pause", worker)
    time.sleep(30)
    docker("unpause", worker)


def block_all(trial: Trial) -> None:
    """Block ssh to all workers for longer than the timeout."""
    workers = containers(trial.root)
    for worker in workers:
        docker("exec", worker, "sh", "-c", SSH_BLOCK)
    time.sleep(30)
    for worker in workers:
        docker("exec", worker, "sh", "-c", SSH_OPEN)


def fill_worker(trial: Trial) -> None:
    """Fill the disk of a worker, which is a small one of its own."""
    fill = "dd if=/dev/zero of=/var/lib/kiln/project/build_artifacts/filler bs=1M 2>/dev/null || true"
    docker("exec", trial.worker(), "sh", "-c", fill)


def small_disk(trial: Trial) -> None:
    """Give the workers small disks."""
    (trial.shelf / "vars.json").write_text(json.dumps({"kiln_local_disk": "600m"}))


def small_disk_here(trial: Trial) -> None:
    """Put build_artifacts onto a small disk."""
    disk = trial.root / "build_artifacts"
    disk.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=160m", "none", str(disk)), check=True)
    trial.cleanups.append(lambda: subprocess.run(("umount", "--lazy", str(disk)), check=True))


def fill_here(trial: Trial) -> None:
    """Leave no byte on this computer's small disk for a while."""
    filler = test_runs.fill(trial.root / "build_artifacts")
    time.sleep(30)
    filler.unlink()


def kill_everything(trial: Trial) -> None:
    """Kill the controller with all its processes."""
    kill([trial.pid, *below(trial.pid)])


def kill_run(trial: Trial) -> None:
    """Kill the controller with all its processes, and all workers."""
    kill_everything(trial)
    docker("kill", *containers(trial.root))


def kill_below(trial: Trial) -> None:
    """Kill one process below the controller."""
    processes = below(trial.pid)
    kill([trial.dice.choice(processes)] if processes else [trial.pid])


def signal_with(number: signal.Signals) -> Callable[[Trial], None]:
    """Return a fault that sends the controller a signal."""
    return lambda trial: os.kill(trial.pid, number)


def damage_ledger(trial: Trial) -> None:
    """Kill the controller, and overwrite a record of the ledger that names a worker."""
    kill_everything(trial)
    assert trial.process is not None
    trial.process.wait()
    artifacts = trial.root / "build_artifacts"
    run = next((artifacts / "fleet").iterdir()).name
    for path in (artifacts / "ledger.sqlite", artifacts / "ledger.sqlite-wal"):
        content = bytearray(path.read_bytes() if path.exists() else b"")
        places = [place for place in range(len(content)) if content.startswith(f"kiln-{run}".encode(), place)]
        for place in trial.dice.sample(places, min(3, len(places))):
            content[place - 8 : place + 24] = trial.dice.randbytes(32)
        if places:
            path.write_bytes(content)


def lose_ledger(trial: Trial) -> None:
    """Kill the controller, and remove the ledger with what SQLite has next to it."""
    kill_everything(trial)
    assert trial.process is not None
    trial.process.wait()
    for path in (trial.root / "build_artifacts").glob("ledger.sqlite*"):
        path.unlink()


def give_notice(trial: Trial) -> None:
    """Announce the end of a worker by its provider's metadata, and end it then."""
    worker = trial.worker()
    server = MetadataServer(("0.0.0.0", 0), trial.shelf / "notice")  # containers ask it
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + NOTICE))
        server.notice.write_text(json.dumps({"action": "terminate", "time": when}))
        address = f"http://{gateway()}:{server.server_address[1]}"
        docker("exec", worker, "sh", "-c", f"echo {address} >/etc/kiln-metadata; chmod 644 /etc/kiln-metadata")
        end = time.monotonic() + NOTICE
        while time.monotonic() < end and worker in containers(trial.root):
            time.sleep(1)
        subprocess.run(("docker", "kill", worker), check=False, capture_output=True)  # it may be gone already
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def gateway() -> str:
    """Return this computer's address in the network of the containers.

    Docker 20.10 says no gateway before its engine has been started a second time; it takes the first address then.
    """
    config = json.loads(docker("network", "inspect", "bridge", "--format", "{{json .IPAM.Config}}"))
    nets = [(ipaddress.ip_network(net["Subnet"]), net.get("Gateway")) for net in config]
    return next(address or str(next(net.hosts())) for net, address in nets if net.version == 4)


def refuse_the_next(trial: Trial) -> None:
    """Kill a worker whose replacement is refused once."""
    trial.flag.touch()
    docker("kill", trial.worker())


def silence_provider(trial: Trial) -> None:
    """Let the provider fail, and a worker be lost meanwhile."""
    trial.flag.touch()
    docker("kill", trial.worker())
    time.sleep(30)
    trial.flag.unlink()


def end_lease(trial: Trial) -> None:
    """End a worker's lease, so that it shuts itself down."""
    docker("exec", trial.worker(), "sh", "-c", "echo 0 >/run/kiln-lease; kiln-lease check")


def restart_sshd(trial: Trial) -> None:
    """Kill every sshd of a worker, with the connections; systemd starts it anew."""
    worker = trial.worker()
    docker("exec", worker, "sh", "-c", "pkill -9 sshd; systemctl reset-failed ssh; systemctl restart ssh")


def kill_at_removal(trial: Trial) -> None:
    """Let the controller be killed by the wrapped docker, as soon as it removes a worker."""
    flag = trial.shelf / "flag.new"
    flag.write_text(f"{trial.pid}\n")
    flag.rename(trial.flag)


def shift_clock(seconds: float) -> Callable[[Trial], object]:
    """Return a fault that sets the controller's clock."""
    return lambda trial: (trial.shelf / "shift").write_text(str(seconds))


def interrupt_teardown(trial: Trial) -> None:
    """Interrupt the run; the playbook of its tear-down is killed by the wrapped docker."""
    os.kill(trial.pid, signal.SIGINT)


def remove_job(trial: Trial) -> None:
    """Stop a build behind the controller's back, and remove all that the worker knows of it."""
    config, worker = trial.dice.choice(sorted(building(trial.root).items()))
    lose = f"systemctl stop kiln-build@{config}.service; rm -rf /run/kiln-jobs/{config}* /var/lib/kiln/jobs/{config}"
    docker("exec", worker, "sh", "-c", lose)


def cut_package(trial: Trial) -> None:
    """Let a package be cut in two on its way: the wrapped rsync does."""
    until(trial.flag.exists, "a package was cut", trial.process)


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


SOON = ("--unreachable-timeout", "10s")
LEASE = (*SOON, "--lease", "4min")  # a silent worker without others that answer is waited for that long
FAULTS = (
    Fault(name="all processes of a build killed", strike=kill_build),
    Fault(name="a worker killed", strike=lambda trial: docker("kill", trial.worker()), options=SOON),
    Fault(name="a worker rebooted", strike=lambda trial: docker("restart", "--time=1", trial.worker()), options=SOON),
    Fault(name="a worker frozen for 30 s", strike=freeze, options=SOON),
    Fault(
        name="ssh to one worker blocked for good",
        strike=lambda trial: docker("exec", trial.worker(), "sh", "-c", SSH_BLOCK),
        options=LEASE,
    ),
    Fault(name="ssh to all workers blocked for 30 s", strike=block_all, options=SOON),
    Fault(name="sshd of a worker killed, and started", strike=restart_sshd),
    Fault(name="sshd of a worker started with another host key", strike=change_host_key, options=LEASE),
    Fault(name="30 % of ssh's packets lost for 40 s", strike=lose_packets, options=SOON),
    Fault(
        name="a worker cut off from the network",
        strike=lambda trial: docker("network", "disconnect", "bridge", trial.worker()),
        options=LEASE,
    ),
    Fault(name="the disk of a worker full", strike=fill_worker, prepare=small_disk),
    Fault(name="the disk of a worker read-only", strike=make_read_only, options=SOON),
    Fault(name="this computer's disk full for 30 s", strike=fill_here, prepare=small_disk_here),
    Fault(name="a notice to a worker on demand, then its end", strike=give_notice, options=SOON),
    Fault(name="a worker's lease ended", strike=end_lease, options=SOON),
    Fault(name="a build and its record removed from a worker", strike=remove_job),
    Fault(
        name="a worker killed, its replacement refused once",
        strike=refuse_the_next,
        options=SOON,
        program="docker",
        script=REFUSE_ONE,
    ),
    Fault(
        name="a worker killed, the provider silent for 30 s",
        strike=silence_provider,
        options=SOON,
        program="docker",
        script=SILENT_PROVIDER,
    ),
    Fault(name="a worker doubled, the other one killed", strike=double_worker, options=SOON),
    Fault(
        name="the cache's server killed eight times",
        strike=kill_cache,
        options=(*SOON, "--cache", "small"),
        prepare=use_cache,
    ),
    Fault(name="a package cut in two on its way", strike=cut_package, program="rsync", script=CUT_PACKAGE),
    Fault(name="controller's clock 3 h ahead", strike=shift_clock(10800.0), any=True),
    Fault(name="controller's clock 3 h back", strike=shift_clock(-10800.0), any=True),
    Fault(name="controller killed", strike=lambda trial: kill([trial.pid]), any=True, ends=True),
    Fault(name="controller killed with all its processes", strike=kill_everything, any=True, ends=True),
    Fault(name="controller and all workers killed", strike=kill_run, options=SOON, ends=True),
    Fault(
        name="controller killed while it removes a worker",
        strike=kill_at_removal,
        ends=True,
        program="docker",
        script=KILL_AT_REMOVAL,
    ),
    Fault(name="a process below the controller killed", strike=kill_below, any=True, ends=True),
    Fault(name="terminal closed (SIGHUP)", strike=signal_with(signal.SIGHUP), any=True, ends=True),
    Fault(name="Ctrl-C", strike=signal_with(signal.SIGINT), any=True, ends=True),
    Fault(
        name="Ctrl-C, the tear-down's playbook killed",
        strike=interrupt_teardown,
        ends=True,
        program="docker",
        script=test_runs.KILL_PLAYBOOK.replace('if [ "$1" = rm ]', 'if [ "$1" = rm ] && mkdir "$(dirname "$0")/flag"'),
    ),
    Fault(name="controller killed, ledger damaged", strike=damage_ledger, ends=True),
    Fault(name="controller killed, ledger lost", strike=lose_ledger, ends=True),
)
