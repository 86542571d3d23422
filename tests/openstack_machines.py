"""An OpenStack whose servers are containers of this computer, which boot from their user data as machines do.

It answers at Docker's own address, so that a server can be a controller, too: it asks for further servers, reaches them
by ssh, and deletes itself.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

from kiln import files, image
from tests.openstack_api import Cloud, serve
from tests.playbook_programs import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.openstack_api import Answer, Row

LABEL = "kiln-openstack"  # of all containers, with the cloud's port
SECONDS = 0.5  # between the answer to a deletion and the server's end: it may have asked for that itself


class ServerCall(NamedTuple):
    """A request about a server: ``server`` is its name, ``caller`` the address of who made it.

    ``restricted`` is true when the caller's credential allows this request alone.
    """

    method: str
    server: str
    caller: str
    restricted: bool


@dataclass(kw_only=True)
class MachineCloud(Cloud):
    """A cloud with machines; ``on_boot`` gets the name of each container, ``calls`` are the requests about servers."""

    folder: Path
    on_boot: Callable[[str], None] = lambda _: None
    calls: list[ServerCall] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The label of the containers."""
        return f"{LABEL}={self.url.rpartition(':')[2]}"

    @property
    def names(self) -> list[str]:
        """The names of the servers."""
        return sorted(row["name"] for row in self.servers.values())

    def container(self, name: str) -> str:
        """Return the container of a server."""
        (row,) = (row for row in self.servers.values() if row["name"] == name)
        return container_of(row)

    def create_server(self, body: Row) -> Answer:
        code, answer = super().create_server(body)
        if code == 202:
            row = self.servers[answer["server"]["id"]]
            self._note("POST", row)
            self._boot(row)
        return code, answer

    def _boot(self, row: Row) -> None:
        seed = self.folder / row["id"]
        files.write_text(seed / "user-data", base64.b64decode(self.user_data[row["name"]]).decode())
        files.write_text(
            seed / "meta-data", json.dumps({"instance-id": row["id"], "local-hostname": row["name"]}) + "\n"
        )
        key, _, text = self.label.partition("=")
        docker_run = load("filter_plugins/kiln_machines.py").docker_run
        docker("run", *docker_run({"name": container_of(row)}, {key: text}, str(seed), ""), image.worker_tag())
        self.on_boot(container_of(row))

    def address_of(self, row: Row) -> str:
        return docker(
            "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", container_of(row)
        ).strip()

    def list_servers(self, query: Row) -> Answer:
        running = docker("ps", "--format", "{{.Names}}", "--filter", f"label={self.label}").split()
        for row in self.servers.values():
            if row["status"] == "ACTIVE" and container_of(row) not in running:
                self.shut_off(row["name"])
        return super().list_servers(query)

    def delete_server(self, key: str) -> Answer:
        row = self.servers.get(key)
        result = super().delete_server(key)
        if row is not None:
            self._note("DELETE", row)
            threading.Timer(SECONDS, remove, (container_of(row),)).start()
        return result

    def _note(self, method: str, row: Row) -> None:
        address, credential = self.caller
        self.calls.append(ServerCall(method, row["name"], address, credential is not None))


def container_of(row: Row) -> str:
    """Return the name of a server's container: of two servers of the same name, the first may still end."""
    return f"{row['name']}-{row['id'][:8]}"


def docker(*arguments: str) -> str:
    """Run Docker's client, and return its output."""
    ended = subprocess.run(("docker", *arguments), check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def remove(*names: str) -> None:
    """Remove containers; those that have ended are as good."""
    if names:
        subprocess.run(("docker", "rm", "--force", "--volumes", *names), check=False, capture_output=True)


def gateway() -> str:
    """Return this computer's address in the network of the containers."""
    text = docker("network", "inspect", "bridge", "--format", "{{range .IPAM.Config}}{{.Gateway}} {{end}}")
    return next(word for word in text.split() if re.fullmatch(r"[0-9.]+", word))


class AddressHandler(BaseHTTPRequestHandler):
    """Answers with the address of who asks, as a public service does."""

    def do_GET(self) -> None:
        """Answer."""
        text = f"{self.client_address[0]}\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def address_service(host: str) -> Iterator[str]:
    """Yield the URL of a service that answers with the caller's address."""
    server = ThreadingHTTPServer((host, 0), AddressHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{host}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def machine_cloud(folder: Path, *, password: str, on_boot: Callable[[str], None]) -> Iterator[tuple[MachineCloud, str]]:
    """Yield a cloud with machines and the URL of a service of addresses; its containers are removed at the end."""
    cloud = MachineCloud(password=password, folder=folder, on_boot=on_boot, flavors=("c3-4", "c3-16", "c3-32"))
    host = gateway()
    with address_service(host) as addresses, contextmanager(serve)(cloud, host):
        try:
            yield cloud, addresses
        finally:
            remove(*docker("ps", "--all", "--quiet", "--filter", f"label={cloud.label}").split())
