"""Remote execution for real: BuildGrid as the server, PostgreSQL as its database, and workers in containers.

BuildGrid comes from PyPI, PostgreSQL from Debian. BuildGrid's releases bring no worker, so worker.py is one. All of
them but the database run in the image that has Bazel, on the network of this machine.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import os
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files as base_files
from tests import small_tensorflow
from tests.remote_cache import bridge, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "buildgrid.txt"
INSTANCE = "kiln/tests"
PYTHON = ("--python-version", "3.13", "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64")
DATABASE_USER = "postgres"

SERVER = """\
server:
  - !channel
    address: "{plain}"
    insecure-mode: true
  - !channel
    address: "{mutual}"
    insecure-mode: false
    credentials:
      tls-server-key: /pool/credentials/server.key
      tls-server-cert: /pool/credentials/server.pem
      tls-client-certs: /pool/credentials/ca.pem
connections:
  - !sql-connection &sql
    connection-string: {database}
storages:
  - !disk-storage &storage
    path: /pool/storage
caches:
  - !lru-action-cache &results
    storage: *storage
    max-cached-refs: 4096
    cache-failed-actions: false
    allow-updates: true
schedulers:
  - !sql-scheduler &scheduler
    sql: *sql
    action-cache: *results
    storage: *storage
    property-set:
      !dynamic-property-set
      match-property-keys: [container-image, OSFamily]
      wildcard-property-keys: [cache-silo-key]
    assigners:
      - !priority-age-assigner
        count: 1
        interval: 0.1
    bot-session-keepalive-timeout: 5
    session-expiry-timer-interval: 1.0
    poll-interval: 0.1
instances:
  - name: {instance}
    services:
      - !action-cache
        cache: *results
      - !execution
        scheduler: *scheduler
      - !cas
        storage: *storage
      - !bytestream
        storage: *storage
thread-pool-size: 60
authorization:
  method: jwt
  secret: /pool/credentials/jwt
  algorithm: hs256
"""
DATABASE = f"postgresql+psycopg://{DATABASE_USER}@/postgres?host=/pool/database"
MIGRATE = f"""\
from alembic import command, config
settings = config.Config()
settings.set_main_option("script_location", "/packages/buildgrid/server/sql/alembic")
settings.set_main_option("sqlalchemy.url", {DATABASE!r})
command.upgrade(settings, "head")
"""


@dataclass(slots=True, kw_only=True)
class Pool:
    """A server and its workers.

    The server has two addresses: ``plain``, and ``mutual``, which requires a client's certificate.
    """

    folder: Path
    plain: str
    mutual: str
    token: str = field(repr=False)
    workers: list[str] = field(default_factory=list)
    started: int = 0

    @property
    def url(self) -> str:
        """The address for a Bazel that lacks TLS, as Debian's does, with the instance."""
        return f"grpc://{self.plain}/{INSTANCE}"

    @property
    def credentials(self) -> Path:
        """The folder of a client's certificates and token."""
        return self.folder / "client"

    def start_workers(self, number: int, *properties: str) -> None:
        """Start further workers, each a container with a name of its own."""
        for _ in range(number):
            name = f"{self._name}-{self.started}"
            self.started += 1
            words = [word for text in properties for word in ("--property", text)]
            arguments = ("--server", self.mutual, "--instance", INSTANCE, "--name", name, *words)
            places = ("--credentials", "/pool/client", "--folder", "/blobs")
            self._start(name, "python3", "-B", "/worker.py", *arguments, *places)
            self.workers.append(name)

    def kill_worker_in_action(self, *, while_true: Callable[[], bool]) -> str:
        """Kill a worker that runs an action, and return its name; empty when ``while_true`` becomes false before."""
        look = "ls -l /proc/[0-9]*/cwd 2>/dev/null | grep --quiet -e '-> /tmp/action-'"
        while while_true():
            for name in self.workers:
                words = ("docker", "exec", name, "sh", "-c", look)
                if subprocess.run(words, capture_output=True, check=False).returncode:
                    continue
                run(("docker", "kill", name))
                self.workers.remove(name)
                return name
        return ""

    def restart(self) -> None:
        """Kill the server and start it again, on the same storage and database."""
        run(("docker", "kill", f"{self._name}-server"))
        self.start_server()

    def make_tables(self) -> None:
        """Make the database's tables."""
        self._start(f"{self._name}-tables", "python3", "-B", "-c", MIGRATE, attached=True)

    def start_server(self) -> None:
        """Start the server, and wait until it answers."""
        name = f"{self._name}-server"
        subprocess.run(("docker", "rm", "--force", name), capture_output=True, check=False)
        self._start(name, "python3", "-B", "/packages/bin/bgd", "server", "start", "/pool/server.yml")
        host, _, port = self.plain.rpartition(":")
        wait_for(name, host, int(port))

    def stop(self) -> None:
        """Remove all containers."""
        names = (f"{self._name}-server", *(f"{self._name}-{number}" for number in range(self.started)))
        subprocess.run(("docker", "rm", "--force", "--volumes", *names), capture_output=True, check=False)

    @property
    def _name(self) -> str:
        return self.folder.name

    def _start(self, name: str, *words: str, attached: bool = False) -> None:
        mounts = {
            packages(): "/packages:ro",
            self.folder: "/pool",
            HERE / "worker.py": "/worker.py:ro",
        }
        volumes = [word for source, target in mounts.items() for word in ("--volume", f"{source}:{target}")]
        options = ("--network", "host", "--env", "PYTHONPATH=/packages", "--init")
        kind = "--rm" if attached else "--detach"
        run(("docker", "run", kind, "--name", name, *options, *volumes, small_tensorflow.IMAGE, *words))


def missing() -> str:
    """Return the reason why this machine cannot serve remote execution; empty when it can."""
    if platform.machine() != "x86_64":
        return "buildgrid.txt has packages for x86-64"
    has_database = any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return "" if has_database and shutil.which("openssl") else "needs initdb (postgresql) and openssl (openssl)"


@contextlib.contextmanager
def served() -> Iterator[Pool]:
    """Serve remote execution to this machine's containers until the end of the block, at first without workers."""
    packages()
    folder = Path(tempfile.mkdtemp(prefix="kiln-pool-"))
    host = bridge()
    plain, mutual = (f"{host}:{free_port()}" for _ in range(2))
    pool = Pool(folder=folder, plain=plain, mutual=mutual, token="")
    try:
        pool.token = make_credentials(folder, host)
        settings = SERVER.format(plain=plain, mutual=mutual, database=DATABASE, instance=INSTANCE)
        (folder / "server.yml").write_text(settings)
        with database(folder / "database"):
            try:
                pool.make_tables()
                pool.start_server()
                yield pool
            finally:
                pool.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def packages() -> Path:
    """Return a folder of BuildGrid and what it needs, for the image's Python; fetched once."""
    folder = small_tensorflow.STORE / "buildgrid"
    complete = folder.with_name("buildgrid.complete")
    made = base_files.sha256(REQUIREMENTS)
    with base_files.held_lock_file(folder.with_name("buildgrid.lock")):
        if not complete.exists() or complete.read_text() != made:
            base_files.remove(folder)
            words = ("install", "--quiet", "--no-deps", "--require-hashes", "--ignore-requires-python")
            places = ("--only-binary", ":all:", *PYTHON, "--target", str(folder), "--requirement", str(REQUIREMENTS))
            run((sys.executable, "-m", "pip", *words, *places))
            base_files.write_text(complete, made)
    return folder


@contextlib.contextmanager
def database(folder: Path) -> Iterator[None]:
    """Run PostgreSQL on a socket in a folder alone."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"))
    folder.mkdir()
    apart: tuple[str, ...] = ()
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, DATABASE_USER, DATABASE_USER)
        folder.parent.chmod(0o755)
        apart = ("runuser", "-u", DATABASE_USER, "--")
    data = folder / "data"
    run((*apart, str(programs / "initdb"), "--auth=trust", f"--username={DATABASE_USER}", "--no-sync", str(data)))
    settings = ("-c", "listen_addresses=", "-c", "fsync=off", "-c", f"unix_socket_directories={folder}")
    with subprocess.Popen(
        (*apart, str(programs / "postgres"), "-D", str(data), *settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            ready = (*apart, str(programs / "pg_isready"), "--host", str(folder), "--quiet")
            while subprocess.run(ready, check=False).returncode:
                assert server.poll() is None, "PostgreSQL has ended"
                time.sleep(0.05)
            yield
        finally:
            run((*apart, str(programs / "pg_ctl"), "stop", "--mode=immediate", "-D", str(data)))


def make_credentials(folder: Path, address: str) -> str:
    """Make an authority, and certificates of the server and of a client; return the token."""
    made, client, anonymous = folder / "credentials", folder / "client", folder / "anonymous"
    for place in (made, client, anonymous):
        place.mkdir()
    key = secrets.token_hex(32)
    (made / "jwt").write_text(key)
    token = json_web_token(key)
    authority(made, "ca")
    for name in ("server", "client"):
        certificate(made, "ca", name, address)
    for place in (client, anonymous):
        shutil.copy(made / "ca.pem", place / "ca.pem")
    for suffix in ("pem", "key"):
        shutil.copy(made / f"client.{suffix}", client)
    (client / "headers").write_text(f"authorization: Bearer {token}\n")
    (client / "headers").chmod(0o600)
    return token


def json_web_token(key: str) -> str:
    """Return a token that is valid for some hours."""
    parts = ({"alg": "HS256", "typ": "JWT"}, {"sub": "tests", "exp": int(time.time()) + 7200})
    signed = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    signature = hmac.digest(key.encode(), signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def authority(folder: Path, name: str) -> None:
    """Make a certificate authority."""
    words = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    files = ("-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem"))
    run(("openssl", "req", *words, *files, "-subj", f"/CN={name}"))


def certificate(folder: Path, signer: str, name: str, address: str) -> None:
    """Make a certificate that an authority has signed."""
    words = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    signed = ("-CA", str(folder / f"{signer}.pem"), "-CAkey", str(folder / f"{signer}.key"))
    files = ("-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem"))
    extensions = ("-addext", f"subjectAltName=IP:{address}", "-addext", "basicConstraints=critical,CA:FALSE")
    run(("openssl", "req", *words, *signed, *files, *extensions, "-subj", f"/CN={name}"))


def wait_for(container: str, address: str, port: int) -> None:
    """Wait until a container's server answers, or has ended."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1.0):
            return
        state = ("docker", "inspect", "--format", "{{.State.Running}}", container)
        if subprocess.run(state, capture_output=True, text=True, check=False).stdout.strip() != "true":
            logs = subprocess.run(("docker", "logs", container), capture_output=True, text=True, check=False)
            raise AssertionError(f"the server has ended\n{logs.stdout}{logs.stderr}")
        time.sleep(0.05)


def run(words: tuple[str, ...]) -> str:
    """Run a program and return its output; fail with all that it said."""
    ended = subprocess.run(words, cwd="/", capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{' '.join(words)}\n{ended.stdout}{ended.stderr}"
    return ended.stdout
