"""BuildGrid on this computer: a remote executor with its database, and a worker that runs actions in a container."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests import small_tensorflow
from tests.integration.fleet.helpers import docker
from tests.remote_cache import bridge, free_port, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUIREMENTS = ("buildgrid==0.4.4", "psycopg2-binary==2.9.13")
USER = "postgres"  # the server of the database does not start as root
SETTINGS = """\
server:
  - !channel {{address: "{address}", insecure-mode: true}}
authorization: {{method: none}}
connections:
  - !sql-connection &sql {{connection-string: "{database}"}}
storages:
  - !disk-storage &cas {{path: "{folder}/cas"}}
caches:
  - !lru-action-cache &actions {{storage: *cas, max-cached-refs: 256, allow-updates: true}}
schedulers:
  - !sql-scheduler &scheduler
    sql: *sql
    action-cache: *actions
    storage: *cas
    property-set: !dynamic-property-set {{match-property-keys: [OSFamily], wildcard-property-keys: [cache-silo-key]}}
    assigners:
      - !priority-age-assigner {{count: 1, interval: 0.1, priority-assignment-percentage: 100}}
instances:
  - name: ''
    services:
      - !action-cache {{cache: *actions}}
      - !execution {{scheduler: *scheduler}}
      - !cas {{storage: *cas}}
      - !bytestream {{storage: *cas}}
thread-pool-size: 30
"""


@dataclass(frozen=True, slots=True)
class Executor:
    """A remote executor: its address, the file with the outputs of all actions that ran, and how it is ended."""

    url: str
    log: Path
    server: subprocess.Popen[bytes]

    def outputs(self) -> list[str]:
        """Return the outputs of the actions that have run."""
        return self.log.read_text().split() if self.log.exists() else []


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, None where it is not installed."""
    found = shutil.which("initdb")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if found is None else [Path(found).resolve().parent]
    return folders[-1] if folders else None


@contextmanager
def served(folder: Path, environment: Path) -> Iterator[Executor]:
    """Let BuildGrid run actions until the end of the block; ``environment`` is a folder for its Python packages."""
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run((sys.executable, "-m", "venv", environment), check=True)
        subprocess.run((python, "-m", "pip", "install", "-qq", *REQUIREMENTS), check=True)
    host, port = bridge(), free_port()
    with ExitStack() as stack:
        database = stack.enter_context(database_served(folder))
        settings = folder / "buildgrid.yml"
        settings.write_text(SETTINGS.format(address=f"{host}:{port}", database=database, folder=folder))
        bgd = str(environment / "bin" / "bgd")
        subprocess.run((bgd, "migrate", "apply", database), check=True, stdout=subprocess.DEVNULL)
        log = stack.enter_context((folder / "buildgrid.log").open("wb"))
        server = subprocess.Popen((bgd, "server", "start", settings), stdout=log, stderr=log)
        stack.callback(server.wait)
        stack.callback(server.kill)
        wait_for(server, host, port)
        actions, done = folder / "actions", folder / "done"
        actions.mkdir()
        name = f"kiln-bot-{port}"
        mount = f"--volume={actions}:{actions}"
        docker(
            "run",
            "--detach",
            "--rm",
            "--init",
            "--network=none",
            f"--name={name}",
            mount,
            small_tensorflow.IMAGE,
            "sleep",
            "infinity",
        )
        stack.callback(docker, "rm", "--force", name)
        bot = (python, "-P", Path(__file__).with_name("remote_executor_bot.py"), f"{host}:{port}", actions, name, done)
        worker = subprocess.Popen(bot, stdout=log, stderr=log)
        stack.callback(worker.wait)
        stack.callback(worker.kill)
        yield Executor(f"grpc://{host}:{port}", done, server)


@contextmanager
def database_served(folder: Path) -> Iterator[str]:
    """Let PostgreSQL serve an empty database; returns its URL."""
    place, port = programs(), free_port()
    assert place is not None
    data = folder / "database"
    data.mkdir()
    shutil.chown(data, USER)
    for above in folder.parents[:-1]:  # which pytest makes for their owner alone
        if above.stat().st_mode & 0o011 == 0:
            above.chmod(above.stat().st_mode | 0o011)
    folder.chmod(folder.stat().st_mode | 0o011)
    as_user = ("runuser", "-u", USER, "--")
    subprocess.run((*as_user, place / "initdb", "-D", data, "-A", "trust"), check=True, stdout=subprocess.DEVNULL)
    call = (*as_user, place / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", data)
    with subprocess.Popen(call, stderr=subprocess.DEVNULL, cwd="/") as server:
        try:
            ready = (place / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port))
            end = time.monotonic() + 60
            while subprocess.run(ready, check=False).returncode:
                assert server.poll() is None
                assert time.monotonic() < end
                time.sleep(0.1)
            yield f"postgresql+psycopg2://{USER}@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
