#!/usr/bin/python
"""Claim existing hosts for a run, and release them: each has a note with its owner, and belongs to one run at a time.

A claim is written into the run's folder before the host is asked, so that a run that was killed finds all hosts that it
had claimed.
"""

from __future__ import annotations

import getpass
import json
import queue
import shlex
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.module_utils import kiln_host_note, kiln_ssh

DOCUMENTATION = """
---
module: kiln_static
short_description: Claim existing hosts for a run of kiln's fleet, and release them
description:
  - C(claimed) claims a free host for each requested worker, and returns the refusals with their reasons.
  - C(listed) lists the claimed hosts, of this run, or with O(everywhere) of all runs.
  - C(left) removes from hosts what a run has put there, its note last; hosts of other runs are not touched.
options:
  folder:
    description: The run's folder on the controller, an absolute path.
    type: path
    required: true
  state:
    description: The action.
    type: str
    required: true
    choices: [claimed, listed, left]
  hosts:
    description: The existing hosts, each with address, key and known_hosts.
    type: list
    elements: dict
    default: []
  machines:
    description: The requested workers, or those to release.
    type: list
    elements: dict
    default: []
  run:
    description: The run's name.
    type: str
    required: true
  owner:
    description: The owner of the run.
    type: str
    required: true
  expires:
    description: The expiry of the workers, in seconds since the epoch.
    type: int
    default: 0
  leave:
    description: The script that removes, as root, what a run has put on a host.
    type: str
    default: ""
  everywhere:
    description: List the hosts of all runs.
    type: bool
    default: false
  user:
    description: The user of ssh.
    type: str
    default: fleet
  ssh_options:
    description: Further options of ssh.
    type: dict
    default: {}
author:
  - kiln (@kiln)
"""

EXAMPLES = """
- name: Claim hosts
  kiln_static:
    folder: /home/me/feedstock/build_artifacts/fleet/one
    state: claimed
    run: one
    owner: one
    hosts: "{{ kiln_static_hosts }}"
    machines:
      - name: kiln-one-1
"""

RETURN = """
machines:
  description: The workers that were claimed, are claimed, or were released.
  returned: always
  type: list
  elements: dict
refused:
  description: The workers that could not be claimed or released, each with a reason.
  returned: always
  type: list
  elements: dict
"""

ARGUMENTS: dict[str, dict[str, Any]] = {
    "folder": {"type": "path", "required": True},
    "state": {"required": True, "choices": ["claimed", "listed", "left"]},
    "hosts": {"type": "list", "elements": "dict", "default": []},
    "machines": {"type": "list", "elements": "dict", "default": []},
    "run": {"required": True},
    "owner": {"required": True},
    "expires": {"type": "int", "default": 0},
    "leave": {"default": ""},
    "everywhere": {"type": "bool", "default": False},
    "user": {"default": "fleet"},
    "ssh_options": {"type": "dict", "default": {}},
}
Host = dict[str, Any]
LOST = 255  # ssh's own exit code
SECONDS = 120  # for one command on a host
IN_PARALLEL = 16  # hosts that are asked at once
REACHED = "kiln: reached"  # the first output of a host: without it nothing was done there


class Unreached(Exception):
    """A host could not be reached; ``unknown`` when it may have run the script all the same."""

    def __init__(self, reason: str, *, unknown: bool) -> None:
        super().__init__(reason)
        self.unknown = unknown


def kind_of(request: dict[str, Any]) -> str:
    """Return the machine type of a requested worker."""
    return str(request.get("type", "static"))


def endpoint(host: Host) -> tuple[str, int]:
    """Return the address and the port of a host, which identify it."""
    return str(host["address"]), int(host.get("port", 22))


def account_user() -> str:
    """Return user@host of this computer."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def worker(
    host: Host, *, name: str, kind: str, run: str, owner: str, account_user: str, state: str, expires: int
) -> dict[str, Any]:
    """Return a host as a worker of a run; ``account_user`` is user@host of the computer that has claimed it."""
    facts = {"id": host["address"], "flavor": host["address"], "private": host["address"], **host}
    return {
        **facts,
        "name": name,
        "provider": "static",
        "run": run,
        "owner": owner,
        "account_user": account_user,
        "type": kind,
        "state": state,
        "ended": False,
        "expires": expires,
    }


class Claims:
    """The claims of a run, as files in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.claims = folder / "claims"

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the hosts that this run has claimed, or may have: {name: {host, type}}."""
        return {path.stem: json.loads(path.read_text()) for path in self.claims.glob("[!.]*.json")}

    def add(self, name: str, host: Host, kind: str) -> None:
        """Write which host is about to be claimed."""
        part = self.claims / f".{name}.new"
        part.write_text(json.dumps({"host": host, "type": kind}))
        part.replace(self.claims / f"{name}.json")

    def remove(self, name: str) -> None:
        """Delete a claim."""
        (self.claims / f"{name}.json").unlink(missing_ok=True)

    def has_inventory(self, name: str) -> bool:
        """Return whether a worker is in the inventory."""
        return (self.folder / "inventory" / f"{name}.json").exists()


class Hosts:
    """The existing hosts, as one run sees them."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.parameters = parameters
        self.claims = Claims(Path(parameters["folder"]))
        self.reasons: dict[str, str] = {}  # of refusals, by address; threads only add to it
        self.claimed_some = False

    def argv(self, host: Host, name: str, known_hosts: str) -> list[str]:
        """Return the command line of ssh without a command: only the given key and host key are used.

        A claim has a new connection, which it leaves open for the playbooks that follow: a host that is gone refuses
        that within seconds, while an open one notices it after a minute. Other queries use what is open.
        """
        user, port = host.get("user", self.parameters["user"]), host.get("port", 22)
        settings = kiln_ssh.settings(user=user, port=port, key=host["key"], known_hosts=known_hosts, alias=name)
        shared = kiln_ssh.sharing(self.claims.folder, is_new=self.parameters["state"] == "claimed")
        options = {**settings, **shared, **self.parameters["ssh_options"]}
        return ["ssh", "-F", "/dev/null", *(f"-o{key}={value}" for key, value in options.items()), str(host["address"])]

    def ask(self, host: Host, name: str, script: str) -> str:
        """Run a script as root on a host and return its output. Raises Unreached."""
        words = f"echo {shlex.quote(REACHED)}; sudo sh -c {shlex.quote(script)}"
        # Not into a pipe: before OpenSSH 8.5, a connection that stays open keeps the standard error output open.
        with tempfile.NamedTemporaryFile("w") as known_hosts, tempfile.TemporaryFile("w+") as messages:
            known_hosts.write(f"{name} {host['known_hosts']}\n")
            known_hosts.flush()
            argv = [*self.argv(host, name, known_hosts.name), words]
            try:
                process = subprocess.run(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=messages,
                    text=True,
                    check=False,
                    timeout=SECONDS,
                )
            except subprocess.TimeoutExpired as slow:
                raise Unreached(f"{host['address']} did not answer within {SECONDS} s", unknown=True) from slow
            messages.seek(0)
            lines = messages.read().strip().splitlines()
        head, _, output = process.stdout.partition("\n")
        if process.returncode:
            reason = lines[-1:] or [f"exit code {process.returncode}"]
            lost = head == REACHED and process.returncode == LOST
            raise Unreached(f"{host['address']}: {reason[0]}", unknown=lost)
        return output

    def claim_all(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Claim a host for each requested worker; return the workers, and the refusals."""
        claims, requests = self.claims.read(), self.parameters["machines"]
        claimed = {endpoint(claim["host"]) for claim in claims.values()}
        unclaimed = [host for host in self.parameters["hosts"] if endpoint(host) not in claimed]
        free = {kind: self._free(unclaimed, kind) for kind in {kind_of(request) for request in requests}}
        earlier = [claims.get(request["name"]) for request in requests]
        queues = [free[kind_of(request)] for request in requests]
        with ThreadPoolExecutor(IN_PARALLEL) as pool:
            results = list(pool.map(self._claim, requests, earlier, queues))
        reason = "; ".join(self.reasons.values()) or f"kiln_static_hosts has {len(self.parameters['hosts'])} hosts"
        refusals = [
            {"name": request["name"], "type": kind_of(request), "reason": reason}
            for request, result in zip(requests, results, strict=True)
            if result is None
        ]
        return [result for result in results if result is not None], refusals

    @staticmethod
    def _free(hosts: list[Host], kind: str) -> queue.SimpleQueue[Host]:
        """Return the hosts of a machine type; C(static) is any host, those without sizes first."""
        free: queue.SimpleQueue[Host] = queue.SimpleQueue()
        for host in sorted(hosts, key=lambda host: kiln_host_note.type_name(host) != kind):
            if kind in {"static", kiln_host_note.type_name(host)}:
                free.put(host)
        return free

    def _claim(
        self, request: dict[str, Any], claim: dict[str, Any] | None, free: queue.SimpleQueue[Host]
    ) -> dict[str, Any] | None:
        """Claim the host that a worker has already, else the first that is free."""
        host = None if claim is None else claim["host"]
        while True:
            try:
                host = free.get_nowait() if host is None else host
            except queue.Empty:
                return None
            result = self._claim_host(host, request)
            if result is not None:
                return result
            host = None

    def _claim_host(self, host: Host, request: dict[str, Any]) -> dict[str, Any] | None:
        """Claim a host, unless it is another run's or cannot be reached."""
        name, kind, parameters = request["name"], kind_of(request), self.parameters
        needs = {} if self.claims.has_inventory(name) else request.get("needs", {})
        self.claims.add(name, host, kind)
        text = kiln_host_note.write(
            run=parameters["run"],
            owner=parameters["owner"],
            machine=name,
            expires=parameters["expires"],
            origin=f"{account_user()}:{parameters['folder']}",
            since=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        )
        state, measure = "running", kiln_host_note.MEASURE if needs else ""
        try:
            output = self.ask(host, name, kiln_host_note.CLAIM.format(text=shlex.quote(text)) + measure)
            note = kiln_host_note.parse(output)
        except Unreached as unreached:
            if not unreached.unknown and not self.claims.has_inventory(name):
                return self._refuse(name, host, str(unreached))
            # It is this run's, or may be: the next listing will know.
            note, state = {"owner": parameters["owner"]}, "unreachable"
        if (note.get("owner"), note.get("machine", name)) != (parameters["owner"], name):
            return self._refuse(name, host, kiln_host_note.refusal(host, note))
        if lack := kiln_host_note.lack(needs, kiln_host_note.measured(note)):
            self._release({**host, "name": name})
            return self._refuse(name, host, f"{host['address']} is too small: it has {lack}")
        if kiln_host_note.NEW in note:
            self.claimed_some = True
        expires = int(note.get("expires") or parameters["expires"])  # of a host that is this run's already: as it was
        facts = {"run": parameters["run"], "owner": parameters["owner"], "expires": expires, "state": state}
        return worker(host, name=name, kind=kind, account_user=account_user(), **facts)

    def _refuse(self, name: str, host: Host, reason: str) -> None:
        self.reasons[str(host["address"])] = reason
        self.claims.remove(name)

    def list_all(self) -> list[dict[str, Any]]:
        """Return the claimed hosts as workers, with those that do not answer and may be claimed."""
        queries = [(name, claim["host"], claim) for name, claim in self.claims.read().items()]
        if self.parameters["everywhere"]:
            queries = [(f"host{number}", host, {}) for number, host in enumerate(self.parameters["hosts"])]
        with ThreadPoolExecutor(IN_PARALLEL) as pool:
            results = list(pool.map(lambda query: self._query(*query), queries))
        return [result for result in results if result is not None]

    def _query(self, name: str, host: Host, claim: dict[str, Any]) -> dict[str, Any] | None:
        parameters, state = self.parameters, "running"
        note = {"run": parameters["run"], "owner": parameters["owner"], "machine": name}
        try:
            note = kiln_host_note.parse(self.ask(host, name, kiln_host_note.QUERY))
            if not note:
                return None
        except Unreached:
            state = "unreachable"
        if not parameters["everywhere"] and (note.get("owner"), note.get("machine")) != (parameters["owner"], name):
            return None
        if parameters["everywhere"] and state == "unreachable":
            return None
        return worker(
            host,
            name=note.get("machine", name),
            kind=claim.get("type", "static"),
            run=note.get("run", ""),
            owner=note.get("owner", ""),
            account_user=note.get("from", "").partition(":")[0],
            state=state,
            expires=int(note.get("expires") or 0),
        )

    def release_all(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Release workers; return those that were released, and the refusals."""
        workers = self.parameters["machines"]
        with ThreadPoolExecutor(IN_PARALLEL) as pool:
            reasons = list(pool.map(self._release, workers))
        results = list(zip(workers, reasons, strict=True))
        released = [item for item, reason in results if not reason]
        return released, [{"name": item["name"], "reason": reason} for item, reason in results if reason]

    def _release(self, host: dict[str, Any]) -> str:
        """Release a host; return why that failed, if it did."""
        name, owner = host["name"], host.get("owner") or self.parameters["owner"]
        script = kiln_host_note.RELEASE.format(owner=shlex.quote(owner), script=self.parameters["leave"])
        try:
            self.ask(host, name, script)
        except Unreached as unreached:
            return str(unreached)
        self.claims.remove(name)
        return ""


def act(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the action of a playbook."""
    hosts = Hosts(parameters)
    if parameters["state"] == "listed":  # with --check, too: it writes nothing into the run's folder
        return {"machines": hosts.list_all(), "refused": [], "changed": False}
    if parameters["state"] == "left":
        machines, refused = hosts.release_all()
        return {"machines": machines, "refused": refused, "changed": bool(machines)}
    for folder in (hosts.claims.folder, hosts.claims.claims, kiln_ssh.sockets(hosts.claims.folder)):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)  # fails if another user owns the folder
    machines, refused = hosts.claim_all()
    return {"machines": machines, "refused": refused, "changed": hosts.claimed_some}


def result(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a task; the action plugin of this name calls it with its validated parameters."""
    try:
        return act(parameters)
    except (OSError, subprocess.SubprocessError, KeyError, ValueError) as failure:
        return {"failed": True, "msg": f"cannot write the run's folder {parameters['folder']}: {failure!r}"}
