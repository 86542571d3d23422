"""Filters that convert the answers of each provider to machines of one shape, and refusals to their reasons.

A machine is {name, id, provider, run, owner, account_user, inputs, type, flavor, state, ended, gone, address, private,
expires}; ``private`` is its address for the run's other workers, ``expires`` is in seconds since the epoch. One that
has ``ended`` builds no more, but its provider may charge for it; one that is ``gone`` is only listed for a while.
Name, run, type and expiry are tags of every provider's machines, by which they are found.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import getpass
import hashlib
import os
import re
import socket
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Machine = dict[str, Any]
RUNNING = {"running", "active"}
LONGEST_USER = 128  # characters; descriptions and tags of all providers hold them
GONE = {"terminated", "shutting-down", "deleted", "soft_deleted"}
# Of OpenStack, EC2 and Docker. A container that is only created belongs to a `docker run` that was killed.
ENDED = {
    *("shutoff", "error", "suspended", "paused", "shelved", "shelved_offloaded"),
    *("stopping", "stopped"),
    *("created", "exited", "dead", "removing"),
}


def from_docker(containers: Iterable[Mapping[str, Any]]) -> list[Machine]:
    """Return machines from the output of ``docker inspect``."""
    return [
        _machine(
            item["Config"]["Labels"],
            provider="local",
            id=item["Id"],
            flavor="container",
            state=item["State"]["Status"],
            **dict.fromkeys(("address", "private"), _first_network(item["NetworkSettings"]["Networks"])),
        )
        for item in containers
    ]


def from_aws(instances: Iterable[Mapping[str, Any]]) -> list[Machine]:
    """Return machines from the result of ``amazon.aws.ec2_instance_info``."""
    return [
        _machine(
            item["tags"],
            provider="aws",
            id=item["instance_id"],
            flavor=item["instance_type"],
            state=item["state"]["name"],
            fault=(item.get("state_reason") or {}).get("message", ""),
            address=item.get("public_ip_address") or item.get("private_ip_address") or "",
            private=item.get("private_ip_address") or item.get("public_ip_address") or "",
        )
        for item in instances
    ]


def from_openstack(servers: Iterable[Mapping[str, Any]]) -> list[Machine]:
    """Return kiln's machines from the result of ``openstack.cloud.server_info``."""
    return [
        _machine(
            item["metadata"],
            provider="openstack",
            id=item["id"],
            flavor=(item.get("flavor") or {}).get("original_name") or (item.get("flavor") or {}).get("name") or "",
            state=item["status"].lower(),
            fault=(item.get("fault") or {}).get("message", ""),
            floating=_has_floating(item),
            address=item.get("access_ipv4") or item.get("public_v4") or _first_address(item.get("addresses") or {}),
            private=_first_address(item.get("addresses") or {}, kind="fixed"),
        )
        for item in servers
        if (item.get("metadata") or {}).get("kiln-fleet") == "true"
    ]


def pending(machines: Iterable[Machine], ids: Iterable[str], floating: bool = False) -> list[str]:
    """Return the ids of the awaited machines that are not listed yet, or still start.

    With ``floating`` they are also pending while they run without a floating address.
    """
    ready = {
        item["id"]
        for item in machines
        if item["gone"] or item["ended"] or (item["state"] in RUNNING and (not floating or item["floating"]))
    }
    return [identity for identity in ids if identity not in ready]


def unstarted(results: Iterable[Mapping[str, Any]], machines: Iterable[Machine]) -> list[dict[str, Any]]:
    """Return the refusals of requested machines that do not run: those in another state, or not listed.

    One that is not listed may exist, and a tear-down looks for it.
    """
    known = {item["id"]: item for item in machines}
    refused = []
    for result in results:
        if not (result.get("instance_ids") or result.get("server")):
            continue  # it was refused at once
        machine = known.get(result["instance_ids"][0] if result.get("instance_ids") else result["server"]["id"])
        if machine is None:
            reason = "the provider accepted the request, but does not list the machine"
        elif machine["state"] in RUNNING:
            continue
        else:
            reason = machine["fault"] or f"the machine is in state {machine['state']}"
        request = {name: result["item"][name] for name in ("name", "type")}
        refused.append({**request, "reason": reason, "unlisted": machine is None})
    return refused


def openstack_address_notes(machines: Iterable[Machine]) -> list[str]:
    """Return the descriptions of the floating addresses of machines."""
    return [
        f"address of {item['name']} of run {item['run']} of kiln{openstack_user_note(item['account_user'])}"
        for item in machines
    ]


def openstack_user_note(user: str) -> str:
    """Return the end of the description of a group or an address, which has no tags: whose it is."""
    return f" for {user}" if user else ""


def _has_floating(server: Mapping[str, Any]) -> bool:
    networks = (server.get("addresses") or {}).values()
    return any(item.get("OS-EXT-IPS:type") == "floating" for network in networks for item in network)


def own(machines: Iterable[Machine], owner: str) -> list[Machine]:
    """Return the machines of one owner, and those that name none."""
    return [item for item in machines if item["owner"] in {"", owner}]


def foreign(machines: Iterable[Machine], owner: str) -> list[Machine]:
    """Return the machines of other owners: those of another run of the same name."""
    return [item for item in machines if item["owner"] not in {"", owner}]


def of_user(items: Iterable[Mapping[str, Any]], user: str) -> list[Mapping[str, Any]]:
    """Return the machines or other resources of a user, with those that name none; all of them for no user.

    A machine names its user by ``account_user``, another resource by its tags or the end of its description.
    """
    return [item for item in items if not user or _user(item) in {"", _tag_text(user)}]


def _user(item: Mapping[str, Any]) -> str:
    if "account_user" in item:
        return _tag_text(str(item["account_user"]))
    if item.get("description"):
        match = re.search(r" of kiln for (.+)$", item["description"])
        return match[1] if match else ""
    return str((item.get("tags") or {}).get("kiln-user", ""))


def abandoned(items: Iterable[Mapping[str, Any]], ended_runs: Iterable[str], age: float) -> list[Mapping[str, Any]]:
    """Return the groups and templates of ended runs, and those that are not new: no worker is about to use them.

    AWS does not say when it has created a group, which has its workers' expiry as a tag; OpenStack's groups have no
    tags, and are new for ``age`` seconds. Of a cloud that says neither, all are old.
    """
    ended = set(ended_runs)
    return [item for item in items if _run(item) in ended or not _is_new(item, age)]


def _run(item: Mapping[str, Any]) -> str:
    match = re.search(r" of run (\S+) of kiln", item.get("description") or "")
    return match[1] if match else str((item.get("tags") or {}).get("kiln-run", ""))


def _is_new(item: Mapping[str, Any], age: float) -> bool:
    with contextlib.suppress(ValueError, KeyError, AttributeError):
        created = dt.datetime.fromisoformat(item["created_at"].replace("Z", "+00:00"))
        return created.timestamp() + age > time.time()
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return int(item["tags"]["kiln-expires"]) > time.time()
    return False


def user_from_arn(arn: str) -> str:
    """Return the user of an ARN of STS: an IAM user's name, or that of a role and its session.

    A session whose name is generated, or an instance's, is left out: the next one of the same person has another.
    """
    resource = arn.rpartition(":")[2]
    kind, _, name = resource.partition("/")
    if kind == "assumed-role":
        role, _, session = name.partition("/")
        return role if re.fullmatch(r"i-[0-9a-f]+|.*[0-9]{6,}|", session) else f"{role}/{session}"
    return name.rpartition("/")[2] or resource


def user_text(user: str) -> str:
    """Return a user as the value of a tag, of the characters that all providers take; by default user@host here."""
    if not user:
        with contextlib.suppress(KeyError, OSError):  # a user of a container may have no name
            user = getpass.getuser()
        user = f"{user or os.getuid()}@{socket.gethostname()}"
    return _tag_text(user)


def _tag_text(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9+=,.@_:/-]+", "-", text)[:LONGEST_USER]


def refusals(results: Iterable[Mapping[str, Any]], success: str) -> list[dict[str, str]]:
    """Return the refusals in a loop's results: those without the key ``success``, with their reasons."""
    return [
        {"name": item["item"]["name"], "type": item["item"]["type"], "reason": _reason(item)}
        for item in results
        if not item.get(success) and not item.get("skipped")
    ]


def docker_run(machine: Mapping[str, Any], labels: Mapping[str, str], seed: str, disk: str) -> list[str]:
    """Return the options of ``docker run`` with which a container boots like a machine."""
    # Besides Docker's defaults: what systemd and a nested Docker need. The container is not privileged.
    rights = ("--cgroupns=private", "--cap-add=SYS_ADMIN", "--cap-add=NET_ADMIN")
    unconfined = ("--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined")
    seeded = f"--mount=type=bind,readonly,target=/var/lib/cloud/seed/nocloud,source={seed}"
    small = f"--tmpfs=/var/lib/kiln/project/build_artifacts:exec,size={disk}"
    return [
        *("--detach", "--rm", "--pull=never", f"--name={machine['name']}", f"--hostname={machine['name']}"),
        *(f"--label={name}={value}" for name, value in labels.items()),
        *rights,
        *unconfined,
        *("--tmpfs=/run:exec", "--tmpfs=/tmp:exec", "--volume=/var/lib/docker", seeded),
        *([small] if disk else []),
    ]


def htpasswd(password: str, user: str) -> str:
    """Return a line of a password file: SHA-1 is enough for a random password, and every cache server supports it."""
    digest = base64.b64encode(hashlib.sha1(password.encode(), usedforsecurity=False).digest()).decode()
    return f"{user}:{{SHA}}{digest}"


def _machine(tags: Mapping[str, str], **facts: Any) -> Machine:
    # Others may write tags: an invalid one must not hide all machines from all runs of a project.
    expires = tags.get("kiln-expires") or ""
    return {
        "name": tags.get("kiln-worker", ""),
        "run": tags.get("kiln-run", ""),
        "owner": tags.get("kiln-owner", ""),
        "account_user": tags.get("kiln-user", ""),
        "inputs": tags.get("kiln-inputs", ""),
        "type": tags.get("kiln-type", ""),
        "expires": int(expires) if expires.isdecimal() else 0,
        "ended": facts["state"] in ENDED,
        "gone": facts["state"] in GONE,
        **facts,
    }


def _first_network(networks: Mapping[str, Mapping[str, Any]]) -> str:
    return next((network["IPAddress"] for network in networks.values()), "")


def _first_address(addresses: Mapping[str, Iterable[Mapping[str, Any]]], kind: str = "floating") -> str:
    """Return a server's first IPv4 address, preferably of a kind."""
    matches = [item for network in addresses.values() for item in network if item.get("version", 4) == 4]
    matches.sort(key=lambda item: item.get("OS-EXT-IPS:type") != kind)
    return matches[0]["addr"] if matches else ""


def _reason(result: Mapping[str, Any]) -> str:
    message = result.get("stderr") or result.get("msg") or "no reason was given"
    return str(message).strip().splitlines()[-1][:500]


class FilterModule:
    """The class that Ansible looks for."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by the names that playbooks use."""
        return {
            "kiln_from_docker": from_docker,
            "kiln_from_aws": from_aws,
            "kiln_from_openstack": from_openstack,
            "kiln_pending": pending,
            "kiln_unstarted": unstarted,
            "kiln_openstack_address_notes": openstack_address_notes,
            "kiln_openstack_user_note": openstack_user_note,
            "kiln_own": own,
            "kiln_of_user": of_user,
            "kiln_abandoned": abandoned,
            "kiln_user_from_arn": user_from_arn,
            "kiln_user_text": user_text,
            "kiln_foreign": foreign,
            "kiln_refusals": refusals,
            "kiln_docker_run": docker_run,
            "kiln_htpasswd": htpasswd,
        }
