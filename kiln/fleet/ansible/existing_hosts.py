"""Existing hosts: a run claims and releases them; each has a note with its owner, and belongs to one run at a time.

A claim is written into the run's folder before the host is asked, so that a run that was killed finds all hosts that it
had claimed. The note, /etc/kiln-owner, is created by a link, which fails if it exists: of two controllers that claim a
host at the same moment only one succeeds.

The states of the action kiln_run:

- ``claimed`` claims a free host for each requested worker, and returns the refusals with their reasons.
- ``listed`` lists the claimed hosts, of this run, or of all runs.
- ``left`` removes from hosts what a run has put there, its note last; hosts of other runs are not touched.
"""

from __future__ import annotations

import getpass
import json
import queue
import re
import shlex
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kiln.base import files
from kiln.base.errors import KilnError
from kiln.base.serialization import read_json_object
from kiln.fleet.ansible import ssh

Host = dict[str, Any]
LOST = 255  # ssh's own exit code
SECONDS = 120  # for one command on a host
IN_PARALLEL = 16  # hosts that are asked at once
REACHED = "kiln: reached"  # the first output of a host: without it nothing was done there

# Run as root: each prints the note, the second after claiming the host if it was free.
QUERY = "cat /etc/kiln-owner 2>/dev/null || true"
CLAIM = """
note=$(mktemp /etc/kiln-owner.XXXXXX)
trap 'rm -f "$note"' EXIT
printf '%s' {text} >"$note"
chmod 644 "$note"
sync "$note"
if ln -T "$note" /etc/kiln-owner 2>/dev/null; then echo claimed_now=yes; fi
cat /etc/kiln-owner
"""
NEW = "claimed_now"  # in the answer to that script, when the host was free until then
# The sizes of a host: its cores, its memory in kB, the free kB of the disk that builds use, and its GPUs.
MEASURE = """
echo measured_cores=$(nproc)
echo measured_memory=$(sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo)
echo measured_disk=$(df --output=avail -k /var/lib | tail -n 1)
echo measured_gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)
"""
# A host without a note was released already, or never claimed.
RELEASE = """
owner=$(sed -n 's/^owner=//p' /etc/kiln-owner 2>/dev/null || true)
if [ "$owner" != {owner} ]; then exit 0; fi
{script}
rm -f /etc/kiln-owner
"""

SIZES = ("cores", "memory", "disk", "gpus")
UNITS = {"cores": "cores", "memory": "GB of memory", "disk": "GB of free disk", "gpus": "GPUs"}
SHARE = 0.9  # of the memory and the disk that a machine is said to have: a part is the kernel's and the system's


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


def note_text(*, run: str, owner: str, machine: str, expires: int, origin: str, since: str) -> str:
    """Return the text of a note; none of its characters is special in a shell's single quotes."""
    fields = {"run": run, "owner": owner, "machine": machine, "expires": expires, "from": origin, "since": since}
    return "".join(f"{name}={re.sub(r'[^ -~]', '?', str(value))}\n" for name, value in fields.items())


def parse_note(text: str) -> dict[str, str]:
    """Return the fields of a note."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def type_name(host: dict[str, Any]) -> str:
    """Return the machine type of a host, as kiln names it: by the sizes that the host is given."""
    return "-".join(["static", *(f"{host[name]:g}{name}" for name in SIZES if host.get(name))])


def measured(fields: dict[str, str]) -> dict[str, float]:
    """Return the sizes in the answer of a host: numbers and GB; those that it could not measure are left out."""
    texts = {name: fields.get(f"measured_{name}", "").strip() for name in SIZES}
    numbers = {name: float(text) for name, text in texts.items() if re.fullmatch("[0-9]{1,15}", text)}
    return {name: number * 1024 / 1e9 if name in {"memory", "disk"} else number for name, number in numbers.items()}


def lack_of(needs: dict[str, Any], sizes: dict[str, float]) -> str:
    """Describe what a host lacks of what the configs of a worker need; empty if it holds them."""
    lacking = [
        f"{sizes[name]:.4g} of {need:g} {UNITS[name]}"
        for name, need in needs.items()
        if name in sizes and sizes[name] < need * (SHARE if name in {"memory", "disk"} else 1)
    ]
    return ", ".join(lacking)


def refusal(host: dict[str, Any], note: dict[str, str]) -> str:
    """Describe why a host of another run cannot be claimed, and how it is released."""
    run, origin, port = note.get("run", "?"), note.get("from", "?"), host.get("port", 22)
    target = f"{host.get('user', 'fleet')}@{host['address']}"
    command = f"ssh{'' if int(port) == 22 else f' -p {port}'} {target} sudo rm /etc/kiln-owner"
    return (
        f"{host['address']} belongs to the run {run} of {origin} since {note.get('since', '?')};"
        f" 'kiln fleet down {run}' there releases it, or if that is no longer possible: {command}"
    )


class Hosts:
    """The existing hosts, as one run sees them, whose claims are files in its folder."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.parameters = parameters
        self.folder = Path(parameters["folder"])
        self.reasons: dict[str, str] = {}  # of refusals, by address; threads only add to it
        self.claimed_some = False

    def claims(self) -> dict[str, dict[str, Any]]:
        """Return the hosts that this run has claimed, or may have: {name: {host, type}}."""
        return {path.stem: read_json_object(path) for path in self.folder.glob("claims/[!.]*.json")}

    def _claim_file(self, name: str) -> Path:
        return self.folder / "claims" / f"{name}.json"

    def _is_recorded(self, name: str) -> bool:
        return (self.folder / "inventory" / f"{name}.json").exists()

    def argv(self, host: Host, name: str, known_hosts: str) -> list[str]:
        """Return the command line of ssh without a command: only the given key and host key are used.

        A claim has a new connection, which it leaves open for the playbooks that follow: a host that is gone refuses
        that within seconds, while an open one notices it after a minute. Other queries use what is open.
        """
        user, port = host.get("user", self.parameters["user"]), host.get("port", 22)
        settings = ssh.settings(user=user, port=port, key=host["key"], known_hosts=known_hosts, alias=name)
        shared = ssh.sharing(self.folder, is_new=self.parameters["state"] == "claimed")
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
        claims, requests = self.claims(), self.parameters["machines"]
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
        for host in sorted(hosts, key=lambda host: type_name(host) != kind):
            if kind in {"static", type_name(host)}:
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
        needs = {} if self._is_recorded(name) else request.get("needs", {})
        files.write_text(self._claim_file(name), json.dumps({"host": host, "type": kind}))
        text = note_text(
            run=parameters["run"],
            owner=parameters["owner"],
            machine=name,
            expires=parameters["expires"],
            origin=f"{account_user()}:{parameters['folder']}",
            since=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        )
        state, measure = "running", MEASURE if needs else ""
        try:
            output = self.ask(host, name, CLAIM.format(text=shlex.quote(text)) + measure)
            note = parse_note(output)
        except Unreached as unreached:
            if not unreached.unknown and not self._is_recorded(name):
                self._refuse(name, host, str(unreached))
                return None
            # It is this run's, or may be: the next listing will know.
            note, state = {"owner": parameters["owner"]}, "unreachable"
        if (note.get("owner"), note.get("machine", name)) != (parameters["owner"], name):
            self._refuse(name, host, refusal(host, note))
            return None
        if lack := lack_of(needs, measured(note)):
            self._release({**host, "name": name})
            self._refuse(name, host, f"{host['address']} is too small: it has {lack}")
            return None
        if NEW in note:
            self.claimed_some = True
        expires = int(note.get("expires") or parameters["expires"])  # of a host that is this run's already: as it was
        facts = {"run": parameters["run"], "owner": parameters["owner"], "expires": expires, "state": state}
        return worker(host, name=name, kind=kind, account_user=account_user(), **facts)

    def _refuse(self, name: str, host: Host, reason: str) -> None:
        self.reasons[str(host["address"])] = reason
        self._claim_file(name).unlink(missing_ok=True)

    def list_all(self) -> list[dict[str, Any]]:
        """Return the claimed hosts as workers, with those that do not answer and may be claimed."""
        queries = [(name, claim["host"], claim) for name, claim in self.claims().items()]
        if self.parameters["everywhere"]:
            queries = [(f"host{number}", host, {}) for number, host in enumerate(self.parameters["hosts"])]
        with ThreadPoolExecutor(IN_PARALLEL) as pool:
            results = list(pool.map(lambda query: self._query(*query), queries))
        return [result for result in results if result is not None]

    def _query(self, name: str, host: Host, claim: dict[str, Any]) -> dict[str, Any] | None:
        parameters, state = self.parameters, "running"
        note = {"run": parameters["run"], "owner": parameters["owner"], "machine": name}
        try:
            note = parse_note(self.ask(host, name, QUERY))
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
        script = RELEASE.format(owner=shlex.quote(owner), script=self.parameters["leave"])
        try:
            self.ask(host, name, script)
        except Unreached as unreached:
            return str(unreached)
        self._claim_file(name).unlink(missing_ok=True)
        return ""


def act(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the action of a playbook."""
    hosts = Hosts(parameters)
    if parameters["state"] == "listed":  # with --check, too: it writes nothing into the run's folder
        return {"machines": hosts.list_all(), "refused": [], "changed": False}
    if parameters["state"] == "left":
        machines, refused = hosts.release_all()
        return {"machines": machines, "refused": refused, "changed": bool(machines)}
    for folder in (hosts.folder, hosts.folder / "claims", ssh.sockets(hosts.folder)):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)  # fails if another user owns the folder
    machines, refused = hosts.claim_all()
    return {"machines": machines, "refused": refused, "changed": hosts.claimed_some}


def result(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a task; the action plugin of this name calls it with its validated parameters."""
    try:
        return act(parameters)
    except (KilnError, OSError, subprocess.SubprocessError, KeyError, ValueError) as failure:
        return {"failed": True, "msg": f"cannot write the run's folder {parameters['folder']}: {failure!r}"}
