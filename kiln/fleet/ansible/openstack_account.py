"""Ask an OpenStack whose its credentials are and what their project may have, and let its servers delete themselves.

The states: ``user`` returns the name of the user, whom Keystone's token names, whoever may ask for nothing else;
``limits`` the limits of the project, and what is used of them. A server that has shut itself down is charged for until
it is deleted. Keystone's application credentials can be restricted by access rules to one method and one path, here to
the deletion of one server: ``present`` creates one for each server, and writes it into the run's folder; secrets are
not returned. ``revoked`` revokes those of the given servers, ``absent`` those of servers that do not exist any more.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kiln.base import files
from kiln.base.errors import KilnError
from kiln.base.serialization import read_json_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Row = dict[str, Any]
DAY = 86400
SUFFIX = "delete-server"  # of the file in the run's folder
NOTE = re.compile(r"deletes server (?P<server>\S+) at (?P<place>\S+) of run (?P<run>\S+) of kiln")
# What is limited: its name, its limit and use as Nova names them, and how many of kiln's units one is.
LIMITS = (
    ("servers", "machines", "maxTotalInstances", "totalInstancesUsed", 1.0),
    ("vCPUs", "cores", "maxTotalCores", "totalCoresUsed", 1.0),
    ("memory", "memory", "maxTotalRAMSize", "totalRAMUsed", 1 / 1024),  # MB to GB
)
NOT_OFFERED = (400, 401, 403, 404, 405, 501)  # Keystone's answers to whoever may not use these credentials


def user_of(connection: Any) -> str:
    """Return the name of the user of a connection of openstacksdk, or its id if the token has no name."""
    access = connection.config.get_auth().get_access(connection.session)
    return str(access.username or access.user_id or "")


def quotas(absolute: Mapping[str, int]) -> list[Row]:
    """Return the quotas of Nova's absolute limits, of which -1 is none."""
    return [
        {
            "name": f"{name} of the project",
            "measure": measure,
            "limit": absolute[limit] * unit,
            "used": absolute.get(used, 0) * unit,
            "spot": None,
            "gpu": None,
        }
        for name, measure, limit, used, unit in LIMITS
        if absolute.get(limit, -1) >= 0
    ]


class RefusedCredential(Exception):
    """The cloud does not create such a credential; the message has the reason."""


class Credentials:
    """The credentials of a user's servers, over a connection of openstacksdk."""

    def __init__(self, connection: Any, folder: Path, run: str) -> None:
        """Ask for the user, and for the cloud's addresses as the servers will see them."""
        self.identity, self.folder, self.run = connection.identity, folder, run
        self.user, self.project = connection.current_user_id, connection.current_project_id
        self.servers = connection.compute
        self.compute = connection.endpoint_for("compute").rstrip("/")
        self.place = urlsplit(self.compute).netloc  # of the region: the user's credentials are those of all regions
        self.auth_url = identity_address(connection.config.auth["auth_url"])
        verified, _ = connection.config.get_requests_verify_args()
        if verified is False:
            raise RefusedCredential("the cloud's certificate is not verified, and a secret would be sent to it")
        self.authority = certificates(Path(verified)) if isinstance(verified, str) else None

    def create(self, machine: Row, expires: int) -> bool:
        """Create a server's credential and write it into the run's folder; return False if it is there already.

        Raises:
            RefusedCredential: the cloud does not restrict credentials to one path, or not for this user.
        """
        # By its id, too: of two servers of one name, each has its own.
        file = self.folder / "keys" / f"{machine['name']}.{machine['id']}.{SUFFIX}"
        server = f"{self.compute}/servers/{machine['id']}"
        if read_json_object(file).get("server") == server:  # and not that of an earlier one of its name
            return False
        name, rule = f"{machine['name']} {machine['id']}", access_rule(server)
        with _refusals():
            for row in self._own():
                if row.name == name:  # its secret was lost with a killed run
                    self._revoke(row)
            created = self.identity.create_application_credential(
                self.user,
                name,
                description=f"deletes server {machine['id']} at {self.place} of run {self.run} of kiln",
                expires_at=moment(expires + DAY),
                unrestricted=False,
                access_rules=[rule],
            )
            # As Keystone has it: what its answer leaves out, openstacksdk fills in from the request.
            known = self.identity.get_application_credential(self.user, created.id)
        if not is_restricted(known.access_rules, rule) or known.unrestricted:
            self._revoke(created)
            raise RefusedCredential("the cloud ignores access rules, so a credential would give its whole project away")
        secret = {"auth_url": self.auth_url, "id": created.id, "secret": created.secret, "server": server}
        files.write_text(file, json.dumps({**secret, "authority": self.authority}) + "\n", mode=0o600)
        return True

    def revoke(self, machines: Iterable[Row]) -> list[str]:
        """Revoke the credentials of these servers; return the names of the credentials."""
        servers = {machine["id"] for machine in machines}
        return self._revoke_if(lambda server, _: server in servers)

    def revoke_all_but(self, machines: Iterable[Row], *, everywhere: bool) -> list[str]:
        """Revoke the credentials of servers that do not exist, of this run or of all; return their names.

        A server that is not listed may have been created since, by another run.
        """
        servers = {machine["id"] for machine in machines}

        def is_gone(server: str, run: str) -> bool:
            return server not in servers and (everywhere or run == self.run) and not self.servers.find_server(server)

        return self._revoke_if(is_gone)

    def _revoke_if(self, chosen: Callable[[str, str], bool]) -> list[str]:
        """Revoke kiln's credentials in this project and region by their servers and runs."""
        revoked = []
        with contextlib.suppress(RefusedCredential), _refusals():
            for row in self._own():
                match = NOTE.fullmatch(row.description or "")
                if match and match["place"] == self.place and chosen(match["server"], match["run"]):
                    self._revoke(row)
                    revoked.append(row.name)
        return revoked

    def _own(self) -> list[Any]:
        rows = self.identity.application_credentials(self.user)
        return [row for row in rows if row.project_id == self.project]

    def _revoke(self, row: Any) -> None:
        """Delete a credential, and its rule, which Keystone keeps otherwise."""
        self.identity.delete_application_credential(self.user, row.id)
        for rule in row.access_rules or ():
            if rule.get("id"):
                with contextlib.suppress(RefusedCredential), _refusals():
                    self.identity.delete_access_rule(self.user, rule["id"])


def certificates(file: Path) -> str:
    """Return the text of a bundle of certificates; the names in its comments may be in any script.

    Raises:
        RefusedCredential: it cannot be read, or is a folder.
    """
    try:
        return file.read_text(encoding="ascii", errors="ignore")
    except OSError as error:
        raise RefusedCredential(f"the cloud's certificates in {file} cannot be read: {error.strerror}") from error


def identity_address(auth_url: str) -> str:
    """Return the address of Keystone's third version."""
    return re.sub(r"/v[23](\.\d+)?$", "", auth_url.rstrip("/")) + "/v3"


def access_rule(server: str) -> dict[str, str]:
    """Return the rule that allows the deletion of a server, by its address, and nothing else."""
    return {"service": "compute", "method": "DELETE", "path": urlsplit(server).path}


def is_restricted(rules: Iterable[Row] | None, rule: dict[str, str]) -> bool:
    """Return whether a credential has one rule alone: a Keystone that does not know rules leaves them out."""
    return [{name: each.get(name) for name in rule} for each in rules or ()] == [rule]


def moment(seconds: int) -> str:
    """Return a time as Keystone reads it."""
    return dt.datetime.fromtimestamp(seconds, tz=dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Raise RefusedCredential for an answer by which Keystone refuses these credentials; others are faults."""
    from openstack.exceptions import HttpException

    try:
        yield
    except HttpException as error:
        if error.status_code not in NOT_OFFERED:
            raise
        raise RefusedCredential(f"Keystone answered {error.status_code}: {error.details or error.message}") from error


def act(connection: Any, parameters: Row) -> Row:
    """Run the action of a playbook; return its answer, or the names of credentials and why there are none."""
    if parameters["state"] == "user":
        return {"user": user_of(connection)}
    if parameters["state"] == "limits":
        return {"quotas": quotas(connection.compute.get("/limits").json()["limits"]["absolute"])}
    try:
        credentials = Credentials(connection, Path(parameters["folder"]), parameters["run"])
        return {"names": _changed(credentials, parameters), "refused": ""}
    except RefusedCredential as refused:
        return {"names": [], "refused": str(refused)}


def _changed(credentials: Credentials, parameters: Row) -> list[str]:
    machines = parameters["machines"]
    if parameters["state"] == "present":
        return [machine["name"] for machine in machines if credentials.create(machine, parameters["expires"])]
    if parameters["state"] == "revoked":
        return credentials.revoke(machines)
    return credentials.revoke_all_but(machines, everywhere=parameters["everywhere"])


FAILURES = {"user": "Keystone did not name the user", "limits": "Nova did not name the limits"}


def result(parameters: Row) -> Row:
    """Return the result of a task; the action kiln_run calls it with its validated parameters."""
    import openstack
    from keystoneauth1.exceptions import ClientException
    from openstack.exceptions import SDKException

    try:
        with openstack.connect() as connection:
            answer = act(connection, parameters)
    except (SDKException, ClientException, KilnError, OSError) as failure:
        credentials = f"the credentials of run {parameters['run']} could not be changed"
        return {"failed": True, "msg": f"{FAILURES.get(parameters['state'], credentials)}: {failure}"}
    return {"changed": bool(answer.get("names")), **answer}
