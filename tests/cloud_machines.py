"""Containers of this computer that boot as machines of a simulated cloud do, and what was asked of the cloud for them.

The cloud answers at Docker's own address, so that a machine can be a controller, too: it asks for further machines,
reaches them by ssh, and ends itself.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kiln.base import files
from kiln.image import worker
from tests.playbook_programs import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LABEL = "kiln-cloud"  # of all containers, with the cloud's port
SECONDS = 0.5  # between the answer to a deletion and the machine's end: it may have asked for that itself


class MachineCall(NamedTuple):
    """An event of a machine: it was created or deleted by who has the address ``caller``, or has shut itself down.

    ``alone`` is true when the caller could do nothing else.
    """

    action: str
    machine: str
    caller: str
    alone: bool = False


class MachineCloud(Protocol):
    """A cloud with machines."""

    provider: str
    calls: list[MachineCall]
    last_action: str  # by which a machine ends itself
    variables: dict[str, object]  # of its playbooks

    @property
    def names(self) -> list[str]:
        """The names of the machines that exist."""

    def container(self, name: str) -> str:
        """Return the container of a machine."""

    def address(self, name: str) -> str:
        """Return the address of a machine."""

    def environment(self, password: str) -> dict[str, str]:
        """Return the variables by which clients find the cloud."""

    def delete(self, name: str) -> None:
        """Delete a machine, as somebody does by hand."""

    def ssh_ranges(self, group: str) -> set[str]:
        """Return the ranges of addresses that a security group admits to ssh."""

    def leftovers(self) -> list[str]:
        """Return what a run has left at the cloud."""


def docker(*arguments: str) -> str:
    """Run Docker's client, and return its output."""
    ended = subprocess.run(("docker", *arguments), check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def boot(container: str, *, label: str, seed: Path, user_data: str) -> None:
    """Start a container, which boots from user data as a machine does; ``label`` is that of the cloud."""
    files.write_text(seed / "user-data", user_data)
    files.write_text(seed / "meta-data", json.dumps({"instance-id": container, "local-hostname": container}) + "\n")
    key, _, text = label.partition("=")
    docker_run = load("filter_plugins/kiln_machines.py").docker_run
    image = worker.worker_recipe().tag
    docker("run", *docker_run({"name": container}, {key: text}, str(seed), ""), image)


def address_of(container: str) -> str:
    """Return the address of a container."""
    template = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    return docker("inspect", "--format", template, container).strip()


def running(label: str) -> list[str]:
    """Return the containers of a cloud."""
    return docker("ps", "--format", "{{.Names}}", "--filter", f"label={label}").split()


def remove(*names: str) -> None:
    """Remove containers; those that have ended are as good."""
    if names:
        subprocess.run(("docker", "rm", "--force", "--volumes", *names), check=False, capture_output=True)


def remove_soon(name: str) -> None:
    """Remove a container once the answer to its deletion is sent."""
    threading.Timer(SECONDS, remove, (name,)).start()


def remove_all(label: str) -> None:
    """Remove all containers of a cloud."""
    remove(*docker("ps", "--all", "--quiet", "--filter", f"label={label}").split())


def gateway() -> str:
    """Return this computer's address in the network of the containers.

    Docker 20.10 says no gateway before its engine has been started a second time; it takes the first address then.
    """
    config = json.loads(docker("network", "inspect", "bridge", "--format", "{{json .IPAM.Config}}"))
    nets = [(ipaddress.ip_network(net["Subnet"]), net.get("Gateway")) for net in config]
    return next(address or str(next(net.hosts())) for net, address in nets if net.version == 4)


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
