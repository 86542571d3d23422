#!/usr/bin/python3
"""The program of a fleet's pool: ``server`` is PostgreSQL and BuildGrid, ``worker`` a worker for each action at a time.

Runs in a container, where /opt has it, BuildGrid's packages, PostgreSQL's libraries, and worker.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DATA, CREDENTIALS, PACKAGES = Path("/data"), "/etc/kiln-pool", "/opt/buildgrid"
PYTHON = {**os.environ, "PYTHONPATH": PACKAGES, "HOME": "/tmp", "PYTHONPYCACHEPREFIX": str(DATA / "bytecode")}
POSTGRESQL = {**os.environ, "LD_LIBRARY_PATH": "/opt/libraries"}
ADDRESS = "postgresql+psycopg://pool@/postgres?host=/tmp"
MIGRATE = f"""\
from alembic import command, config
settings = config.Config()
settings.set_main_option("script_location", "{PACKAGES}/buildgrid/server/sql/alembic")
settings.set_main_option("sqlalchemy.url", {ADDRESS!r})
command.upgrade(settings, "head")
"""


def server(settings: str) -> list[subprocess.Popen[bytes]]:
    """Start PostgreSQL, which recovers by itself from a kill, and BuildGrid."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"))
    database = DATA / "database"
    (database / "postmaster.pid").unlink(missing_ok=True)  # of a killed container, whose process ids mean nothing here
    if not (database / "PG_VERSION").exists():
        words = ("--auth=trust", "--username=pool", "--no-sync", "--encoding=UTF8", "--locale=C", str(database))
        subprocess.run((str(programs / "initdb"), *words), env=POSTGRESQL, check=True)
    words = ("-D", str(database), "-c", "listen_addresses=", "-c", "unix_socket_directories=/tmp")
    postgres = subprocess.Popen((str(programs / "postgres"), *words), env=POSTGRESQL)
    ready = (str(programs / "pg_isready"), "--host=/tmp", "--dbname=postgres", "--quiet")
    while subprocess.run(ready, env=POSTGRESQL, check=False).returncode:
        time.sleep(0.1)
    subprocess.run((sys.executable, "-c", MIGRATE), env=PYTHON, check=True)
    return [
        postgres,
        subprocess.Popen((sys.executable, f"{PACKAGES}/bin/bgd", "server", "start", settings), env=PYTHON),
    ]


def worker(settings: str) -> list[subprocess.Popen[bytes]]:
    """Start a worker for each action at a time."""
    known = json.loads(Path(settings).read_text())
    properties = [word for name, value in known["properties"].items() for word in ("--property", f"{name}={value}")]
    return [
        subprocess.Popen(
            (
                *(sys.executable, "/opt/worker.py", "--server", known["server"], "--instance", ""),
                *("--name", f"{known['name']}-{number}", "--credentials", CREDENTIALS),
                *("--folder", str(DATA / f"blobs-{number}"), *properties),
            ),
            env=PYTHON,
        )
        for number in range(known["actions"])
    ]


def main() -> None:
    """Run the part that the arguments name until one of its processes ends, or a signal ends all."""
    start = {"server": server, "worker": worker}[sys.argv[1]]
    processes = start(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while all(process.poll() is None for process in processes):
            time.sleep(0.5)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(10)


if __name__ == "__main__":
    main()
