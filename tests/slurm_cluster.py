"""A Slurm cluster of several nodes on this computer: munged, slurmctld and a slurmd for each node, without systemd."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

from kiln.base import process_table
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

CONF = """
ClusterName=kiln
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5,socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
SlurmdParameters=config_overrides
GresTypes=gpu
MessageTimeout=5
KillWait=2
OverTimeLimit=0
MinJobAge=300
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1,sched_min_interval=100000
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cores} RealMemory=4000
NodeName={gpu_node} NodeHostname={host} NodeAddr=127.0.0.1 Port={last_port} CPUs=4 RealMemory=9000 Gres=gpu:1 Weight=9
PartitionName=main Nodes=n[1-{nodes}] Default=YES State=UP
PartitionName=mixed Nodes=n[1-{nodes}],{gpu_node} State=UP
PartitionName=closed Nodes=n1 State=DOWN
"""
# A file that all computers have stands for the device; nothing opens it.
GRES_CONF = "NodeName={gpu_node} Name=gpu File=/dev/null\n"
SBIN = "/usr/sbin"  # not in every user's PATH


class SlurmCluster:
    """A cluster below a folder; `start` and `stop` it, or one of its daemons.

    Equal nodes are the partition main; with ``gpu_node``, a larger one with a GPU, they are the partition mixed.
    """

    def __init__(self, folder: Path, *, nodes: int = 2, cores: int = 2) -> None:
        self.folder = folder
        self.gpu_node = f"n{nodes + 1}"
        self.nodes = [*(f"n{number}" for number in range(1, nodes + 1)), self.gpu_node]
        self.conf = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        ports = free_ports(nodes + 2)
        for name in ("munge", "state", *self.nodes):
            (folder / name).mkdir(parents=True, mode=0o755)
        key = folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        host = socket.gethostname().partition(".")[0]
        text = CONF.format(
            folder=folder,
            host=host,
            port=ports[0],
            nodes=nodes,
            cores=cores,
            first=ports[1],
            last=ports[-2],
            last_port=ports[-1],
            gpu_node=self.gpu_node,
        )
        self.conf.write_text(text)
        (folder / "gres.conf").write_text(GRES_CONF.format(gpu_node=self.gpu_node))

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment, with which Slurm's programs find the cluster."""
        path = os.pathsep.join((os.environ.get("PATH", os.defpath), SBIN))
        return {**os.environ, "SLURM_CONF": str(self.conf), "PATH": path}

    def start(self) -> None:
        """Start all daemons, and wait for the nodes."""
        munge = self.folder / "munge"
        names = ("socket", "pid-file", "log-file", "seed-file")
        files = [f"--{name}={munge / name.removesuffix('-file')}" for name in names]
        self._run("munged", "--foreground", f"--key-file={munge / 'key'}", "--force", *files)
        until((munge / "socket").exists, "munged listens", self._daemons["munged"])
        self.start_controller()
        for node in self.nodes:
            self._run("slurmd", "-D", "-f", str(self.conf), "-N", node)
        until(lambda: self._states() == {"idle"}, "all nodes are idle")

    def start_controller(self) -> None:
        """Start slurmctld, which has the jobs of one that was stopped, and wait until it answers."""
        self._run("slurmctld", "-D", "-f", str(self.conf))
        until(self._states, "slurmctld answers", self._daemons["slurmctld"])

    def stop_controller(self) -> None:
        """End slurmctld, which stores its state."""
        daemon = self._daemons.pop("slurmctld")
        daemon.terminate()
        daemon.wait()

    def stop(self) -> None:
        """Cancel all jobs, and end all daemons."""
        self._call("scancel", "--user=root")
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        mark = f"SLURM_CONF={self.conf}".encode()  # of the daemons, and so of the jobs that they started
        left = tuple(
            pid
            for pid in process_table.all_pids()
            if pid != os.getpid() and mark in process_table.environment_of_process(pid)
        )
        process_table.send_signal(signal.SIGKILL, left)

    def call(self, *words: str) -> str:
        """Return the output of one of Slurm's programs."""
        return subprocess.run(words, env=self.environment, check=True, capture_output=True, text=True).stdout

    def jobs(self, partition: str = "main") -> dict[str, str]:
        """Return the names and states of all jobs of a partition that Slurm knows, those that have ended too."""
        words = ("--noheader", f"--partition={partition}", "--states=all", "--format=%j %T")
        return dict(line.split() for line in self.call("squeue", *words).splitlines())

    def job_ids(self, state: str) -> dict[str, str]:
        """Return the configs and numbers of a run's jobs in a state, in the partition main."""
        words = ("--noheader", "--partition=main", f"--states={state}", "--format=%A %k")
        lines = self.call("squeue", *words).splitlines()
        return {line.split()[3]: line.split()[0] for line in lines if " kiln " in line}

    def _states(self) -> set[str]:
        return set(self._call("sinfo", "--noheader", "--partition=mixed", "--format=%T").stdout.split())

    def _call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=self.environment, check=False, capture_output=True, text=True)

    def _run(self, program: str, *words: str) -> None:
        """Start a daemon in the foreground, as a child of this process."""
        path = shutil.which(program, path=self.environment["PATH"])
        assert path, program
        with (self.folder / "daemons.log").open("ab") as log:
            process = subprocess.Popen(
                (path, *words), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._daemons[f"{program}-{words[-1]}" if program == "slurmd" else program] = process


def free_ports(count: int) -> list[int]:
    """Return as many consecutive ports that nobody listens at, and hardly another cluster that starts just now."""
    for first in random.sample(range(26000, 30000, count), 100):
        sockets: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
        return list(range(first, first + count))
    raise AssertionError("no free ports")
