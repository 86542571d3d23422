"""An OpenStack whose servers are containers of this computer, which boot from their user data as machines do."""

from __future__ import annotations

import base64
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.cloud_machines import LABEL, MachineCall, address_of, boot, gateway, remove_all, remove_soon, running
from tests.openstack_api import Cloud, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.openstack_api import Answer, Row


@dataclass(kw_only=True)
class OpenStackMachines(Cloud):
    """An OpenStack with machines; ``on_boot`` gets the name of each container."""

    folder: Path
    on_boot: Callable[[str], None]
    calls: list[MachineCall] = field(default_factory=list)
    provider: str = "openstack"
    last_action: str = "deleted"  # the server has a credential for that
    variables: dict[str, object] = field(default_factory=dict)

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
        return container_of(self._row(name))

    def address(self, name: str) -> str:
        """Return the address of a server."""
        (network,) = self._row(name)["addresses"].values()
        return str(network[0]["addr"])

    def _row(self, name: str) -> Row:
        (row,) = (row for row in self.servers.values() if row["name"] == name)
        return row

    def create_server(self, body: Row) -> Answer:
        code, answer = super().create_server(body)
        if code == 202:
            row = self.servers[answer["server"]["id"]]
            self._note("created", row)
            user_data = base64.b64decode(self.user_data[row["name"]]).decode()
            boot(container_of(row), label=self.label, seed=self.folder / row["id"], user_data=user_data)
            self.on_boot(container_of(row))
        return code, answer

    def address_of(self, row: Row) -> str:
        return address_of(container_of(row))

    def list_servers(self, query: Row) -> Answer:
        names = running(self.label)
        for row in self.servers.values():
            if row["status"] == "ACTIVE" and container_of(row) not in names:
                self.shut_off(row["name"])
        return super().list_servers(query)

    def delete_server(self, key: str) -> Answer:
        row = self.servers.get(key)
        result = super().delete_server(key)
        if row is not None:
            self._note("deleted", row)
            remove_soon(container_of(row))
        return result

    def delete(self, name: str) -> None:
        """Delete a server, as somebody does by hand."""
        self.delete_server(self._row(name)["id"])

    def ssh_ranges(self, group: str) -> set[str]:
        """Return the ranges of addresses that a security group admits to ssh."""
        (row,) = (row for row in self.groups.values() if row["name"] == group)
        rules = [rule for rule in row["security_group_rules"] if rule["direction"] == "ingress"]
        return {rule["remote_ip_prefix"] for rule in rules if rule["port_range_min"] in (22, "22")}

    def leftovers(self) -> list[str]:
        """Return what a run has left."""
        groups = [row["name"] for row in self.groups.values() if row["name"] != "default"]
        return [*self.names, *groups, *self.credentials, *self.rules]

    def _note(self, action: str, row: Row) -> None:
        address, credential = self.caller
        self.calls.append(MachineCall(action, row["name"], address, credential is not None))


def container_of(row: Row) -> str:
    """Return the name of a server's container: of two servers of the same name, the first may still end."""
    return f"{row['name']}-{row['id'][:8]}"


@contextmanager
def openstack_machines(folder: Path, *, password: str, on_boot: Callable[[str], None]) -> Iterator[OpenStackMachines]:
    """Yield an OpenStack with machines; its containers are removed at the end."""
    flavors = ("c3-4", "c3-16", "c3-32")
    cloud = OpenStackMachines(password=password, folder=folder, on_boot=on_boot, flavors=flavors)
    with contextmanager(serve)(cloud, gateway()):
        try:
            yield cloud
        finally:
            remove_all(cloud.label)
