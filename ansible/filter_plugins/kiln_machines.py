"""Filters that make the answers of each provider into machines of one shape, and refusals into their reasons.

A machine is {name, id, provider, run, type, flavour, state, address, private, expires}; ``private`` is where the run's
other machines reach it, ``expires`` an epoch in seconds.
Every provider keeps name, run, type and end of life where it keeps its tags: a machine can be found by these alone.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Machine = dict[str, Any]
GONE = {"terminated", "shutting-down", "deleted", "soft_deleted"}


def from_docker(containers: Iterable[Mapping[str, Any]]) -> list[Machine]:
    """Machines out of what ``docker inspect`` tells of containers."""
    return [
        _machine(
            each["Config"]["Labels"],
            provider="local",
            id=each["Id"],
            flavour="container",
            state=each["State"]["Status"],
            **dict.fromkeys(("address", "private"), _first_network(each["NetworkSettings"]["Networks"])),
        )
        for each in containers
    ]


def from_qemu(found: Iterable[Mapping[str, Any]]) -> list[Machine]:
    """Machines out of what ``kiln_qemu`` lists; their ssh is a port of this computer's own address."""
    return [
        _machine(
            each["tags"],
            provider="local",
            id=each["id"],
            flavour="qemu",
            accelerator=each["accelerator"],
            state="running",
            address="127.0.0.1",
            private="",  # each has a network of its own
            port=each["port"],
        )
        for each in found
    ]


def from_aws(instances: Iterable[Mapping[str, Any]]) -> list[Machine]:
    """Machines out of what ``amazon.aws.ec2_instance_info`` tells, those that are ended left out."""
    return [
        _machine(
            each["tags"],
            provider="aws",
            id=each["instance_id"],
            flavour=each["instance_type"],
            state=each["state"]["name"],
            address=each.get("public_ip_address") or each.get("private_ip_address") or "",
            private=each.get("private_ip_address") or each.get("public_ip_address") or "",
        )
        for each in instances
        if each["state"]["name"] not in GONE
    ]


def from_openstack(servers: Iterable[Mapping[str, Any]]) -> list[Machine]:
    """Machines out of what ``openstack.cloud.server_info`` tells, those of kiln's alone."""
    return [
        _machine(
            each["metadata"],
            provider="openstack",
            id=each["id"],
            flavour=(each.get("flavor") or {}).get("original_name") or (each.get("flavor") or {}).get("name") or "",
            state=each["status"].lower(),
            fault=(each.get("fault") or {}).get("message", ""),
            address=each.get("access_ipv4") or each.get("public_v4") or _first_address(each.get("addresses") or {}),
            private=_first_address(each.get("addresses") or {}, kind="fixed"),
        )
        for each in servers
        if (each.get("metadata") or {}).get("kiln-fleet") == "true" and each["status"].lower() not in GONE
    ]


def from_static(
    hosts: Iterable[Mapping[str, Any]], run: str, names: Iterable[str], known: Iterable[Machine]
) -> list[Machine]:
    """Machines out of a list of hosts that exist: those a run knows, and for other names the hosts that are free."""
    known = list(known)
    taken, called = ({_place(each) for each in known}, {each["name"] for each in known})
    free = [host for host in hosts if _place(host) not in taken]
    return known + [
        {
            "name": name,
            "id": host["address"],
            "provider": "static",
            "run": run,
            "type": host.get("type", "static"),
            "flavour": host["address"],
            "state": "running",
            "private": host["address"],
            **host,
            "expires": 0,
        }
        for name, host in zip([name for name in names if name not in called], free, strict=False)
    ]


def _place(host: Mapping[str, Any]) -> tuple[str, int]:
    return host["address"], int(host.get("port", 22))


def refusals(results: Iterable[Mapping[str, Any]], success: str) -> list[dict[str, str]]:
    """What a provider refused: of a loop's results those without the key ``success``, with the reason it gave."""
    return [
        {"name": each["item"]["name"], "type": each["item"]["type"], "reason": _reason(each)}
        for each in results
        if not each.get(success) and not each.get("skipped")
    ]


def faults(machines: Iterable[Machine]) -> list[dict[str, str]]:
    """Machines that came up in a faulty state, as refusals."""
    return [
        {"name": each["name"], "type": each["type"], "reason": each.get("fault") or "the machine is in state error"}
        for each in machines
    ]


def docker_run(machine: Mapping[str, Any], labels: Mapping[str, str], seed: str, disk: str) -> list[str]:
    """The options of ``docker run`` that make a container boot as a machine does."""
    # Beside Docker's defaults: what systemd and an inner Docker need. It is not a privileged container.
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
    """A line of a file of users: SHA-1 does for a password that is random, and every server of a cache knows it."""
    digest = base64.b64encode(hashlib.sha1(password.encode(), usedforsecurity=False).digest()).decode()
    return f"{user}:{{SHA}}{digest}"


def _machine(tags: Mapping[str, str], **known: object) -> Machine:
    return {
        "name": tags.get("kiln-machine", ""),
        "run": tags.get("kiln-run", ""),
        "type": tags.get("kiln-type", ""),
        "expires": int(tags.get("kiln-expires") or 0),
        **known,
    }


def _first_network(networks: Mapping[str, Mapping[str, Any]]) -> str:
    return next((network["IPAddress"] for network in networks.values()), "")


def _first_address(addresses: Mapping[str, Iterable[Mapping[str, Any]]], kind: str = "floating") -> str:
    """Of a server's addresses the first of version 4, one of a kind before others."""
    found = [each for network in addresses.values() for each in network if each.get("version", 4) == 4]
    found.sort(key=lambda each: each.get("OS-EXT-IPS:type") != kind)
    return found[0]["addr"] if found else ""


def _reason(result: Mapping[str, Any]) -> str:
    said = result.get("stderr") or result.get("msg") or "no reason was given"
    return str(said).strip().splitlines()[-1][:500]


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by the names that playbooks use."""
        return {
            "kiln_from_docker": from_docker,
            "kiln_from_qemu": from_qemu,
            "kiln_from_aws": from_aws,
            "kiln_from_openstack": from_openstack,
            "kiln_from_static": from_static,
            "kiln_refusals": refusals,
            "kiln_faults": faults,
            "kiln_docker_run": docker_run,
            "kiln_htpasswd": htpasswd,
        }
