"""The supervisor's hands on real machines: playbooks through ansible-runner, builds followed over ssh.

Each order is carried out in a thread of its own and ends in an event. What is started here carries the run's mark in
its environment, and secrets only there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import queue
import re
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln import command, files
from kiln.errors import BrokenPackage, DiskFull, HashMismatch, KilnError, OutOfMemory
from kiln.fleet import arrival, orphans
from kiln.fleet.follow import Log, status_of
from kiln.fleet.mission import CACHE
from kiln.fleet.orders import (
    AllGone,
    Attend,
    Began,
    Bring,
    Collect,
    Down,
    Ended,
    Failed,
    Heard,
    Left,
    Line,
    Look,
    Looked,
    NoRoom,
    NotHome,
    Prepare,
    Prepared,
    Refused,
    Remove,
    Removed,
    Renew,
    Silent,
    Start,
    Up,
    Watch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kiln.fleet.orders import Event, Order
    from kiln.model.artifact import PackageReport

SSH_SECONDS = 60.0  # for one look at a machine
LOOKS = 3  # at a machine that may be there again
RESERVE = 8 << 20  # bytes kept for the tear-down, which writes into the run's folder, too
LITTLE = 16 << 20  # bytes free on the disk, with which a playbook may fail for want of more
NO_ROOM = "NO ROOM"  # in the words of the module that brings packages home
CREDENTIALS = re.compile(
    r"AuthFailure|UnauthorizedOperation|InvalidClientTokenId|SignatureDoesNotMatch|UnrecognizedClient|AccessDenied"
    r"|ExpiredToken|InvalidAccessKeyId|[Uu]nable to locate credentials|NoCredentials|HTTP 40[13]"
    r"|requires authentication|[Uu]nauthorized|not authorized|Missing value auth",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a fleet run has its things: ``folder`` is the run's own, ``python`` that of the fleet's environment.

    ``variables`` are those that every playbook gets, ``environment`` what its process sees, of which ``secrets`` are
    blotted out of all that is written; ``more`` are files of further variables. ``options`` are those of ``kiln build``
    on the machines, whose kind is ``type``; ``poll`` are the seconds between two looks at a build.
    """

    folder: Path
    playbooks: Path
    python: Path
    variables: Mapping[str, Any]
    environment: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False, default=())
    options: tuple[str, ...] = ()
    more: tuple[Path, ...] = ()
    type: str = ""
    cache_type: str = ""
    spot: bool = False
    poll: float = 5.0

    @property
    def reserve(self) -> Path:
        """A file that holds room on the disk for the tear-down."""
        return self.folder / "reserve"

    @property
    def marked(self) -> dict[str, str]:
        """The environment of what is started, with the run's mark."""
        return {**self.environment, orphans.MARK: str(self.folder)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How a playbook ended: ``reasons`` say for each host why it failed there."""

    ok: bool
    reasons: Mapping[str, str]

    def reason(self, host: str) -> str:
        """Return why it failed for a host, or at all."""
        return self.reasons.get(host) or "; ".join(self.reasons.values()) or "the playbook did not end"


class Playbooks:
    """Runs playbooks of one site, several at a time, and can stop them all."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._running: dict[int, int] = {}
        self._number = itertools.count(1)
        self._lock = threading.Lock()
        self._stopped = False

    def play(
        self,
        name: str,
        *,
        machine: str = "",
        tags: Sequence[str] = (),
        on_task: Callable[[str], None] = lambda _: None,
        last: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> Played:
        """Run a playbook to its end; one that is not the ``last`` is refused or ended once all are stopped.

        Raises:
            DiskFull: when it failed, and there is no room on this computer's disk.
        """
        number = next(self._number)
        folder = self.site.folder / "runner" / f"{number:04d}-{name.removesuffix('.yml')}-{os.getpid()}"
        spec = self._spec(folder, name, machine, tags, variables or {})
        heard: dict[str, str] = {}

        def hear(line: str) -> None:
            told = _told(line)
            if told.get("kind") == "hello" and not last:
                self._began(number, int(told["pid"]))
            elif told.get("kind") == "task":
                on_task(told["name"])
            elif told.get("kind") in {"failed", "unreachable"}:
                heard.setdefault(told["host"], f"{told['task']}: {told['reason']}")  # what follows comes of the first

        if self._stopped and not last:
            return Played(ok=False, reasons={"": "the run is being stopped"})
        words = (self.site.python, "-I", "-m", "kiln.fleet.playbook", spec)
        try:
            ended = command.run(
                words,
                env=self.site.marked,
                log=self.site.folder / "playbooks.log",
                secrets=self.site.secrets,
                on_line=hear,
            )
        finally:
            with self._lock:
                self._running.pop(number, None)
            files.remove(folder)
        if not ended.ok and not last:
            files.require_room(self.site.folder, LITTLE, for_what=f"{name}, which has failed,")
        if not ended.ok and not heard:
            heard[""] = ended.tail[-500:]
        return Played(ok=ended.ok, reasons=heard)

    def stop(self) -> None:
        """End all playbooks that run, with what they started."""
        with self._lock:
            self._stopped = True
            for pid in self._running.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        orphans.end(self.site.folder)

    def _began(self, number: int, pid: int) -> None:
        with self._lock:
            self._running[number] = pid
            if self._stopped:
                os.kill(pid, signal.SIGTERM)

    def _spec(self, folder: Path, name: str, machine: str, tags: Sequence[str], variables: Mapping[str, Any]) -> Path:
        """Write down what the process is to run; it holds no secret."""
        folder.mkdir(parents=True, mode=0o700)
        inventory = self.site.folder / "inventory" / f"{machine}.json"
        files.write_text(folder / "variables.json", json.dumps({**self.site.variables, **variables}))
        spec = {
            "playbook": str(self.site.playbooks / name),
            "inventory": [str(inventory)] if machine else [],
            "limit": [machine] if machine else [],
            "tags": list(tags),
            "variables": [str(folder / "variables.json"), *map(str, self.site.more)],
            "folder": str(folder),
            "parent": os.getpid(),
        }
        files.write_text(folder / "spec.json", json.dumps(spec))
        return folder / "spec.json"


class Crew:
    """Carries out orders on real machines; see `kiln.fleet.orders.Hands`."""

    def __init__(
        self, site: Site, *, keep: Callable[[str, Sequence[PackageReport]], tuple[PackageReport, ...]]
    ) -> None:
        """``keep`` puts a cell's packages, which came home, where finished packages lie."""
        self.site = site
        self.keep = keep
        self.playbooks = Playbooks(site)
        self.events: queue.Queue[Event] = queue.Queue()
        self.given_up: set[str] = set()
        self.cells: dict[str, str] = {}
        self.stopped = threading.Event()
        self.provider = threading.Lock()

    # The supervisor's side

    def now(self) -> float:
        """Return the time."""
        return time.time()

    def hear(self, until: float) -> Event | None:
        """Return the next event, or None when the time is over."""
        try:
            return self.events.get(timeout=max(0.0, until - self.now()))
        except queue.Empty:
            return None

    def begin(self, order: Order) -> None:
        """Carry out an order in a thread of its own."""
        if isinstance(order, Remove):
            self.given_up.add(order.machine)
        threading.Thread(target=self._carry_out, args=(order,), daemon=True).start()

    def _carry_out(self, order: Order) -> None:
        """An order that cannot be carried out for whatever reason is one that failed, not one that is forgotten."""
        try:
            with files.no_room_as_disk_full(self.site.folder):
                self._do(order)
        except (KilnError, OSError, ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            match order:
                case Down():
                    self.events.put(Left(reason=reason))
                case _ if isinstance(error, DiskFull):
                    self.events.put(NoRoom(order=order, reason=f"{error.what}: {error.why}"))
                case Bring():
                    for machine in order.machines:
                        self.events.put(Refused(machine=machine, reason=reason))
                case Collect():
                    self.events.put(NotHome(machine=order.machine, config=order.config, reason=reason))
                case _:
                    self.events.put(Failed(machine=order.machine, reason=reason))

    def _do(self, order: Order) -> None:  # noqa: C901 - one line for each order
        match order:
            case Bring():
                self._bring(order.machines)
            case Prepare():
                self._prepare(order.machine)
            case Attend():
                self._attend(order.machine)
            case Look():
                self._look(order.machine)
            case Start():
                self._start(order)
            case Watch():
                self._watch(order)
            case Collect():
                self._collect(order.machine, order.config)
            case Renew():
                self._ssh(order.machine, f"sudo kiln-lease renew {int(order.seconds)}")
            case Remove():
                self._remove(order.machine)
            case Down():
                self._down()

    # Machines

    def _bring(self, machines: tuple[str, ...]) -> None:
        wanted = [self._wanted(name) for name in machines]
        with self.provider:
            played = self.playbooks.play(
                "provision.yml", on_task=self._say_of(*machines), variables={"kiln_machines": wanted}
            )
        for name in machines:
            known = self._known(name)
            if known:
                self.events.put(Up(machine=name, id=str(known["id"])))
                continue
            told = _json(self.site.folder / "refused" / f"{name}.json").get("reason", "")
            if self.stopped.is_set() and not told:
                continue  # nobody refused it: its making was stopped
            reason = told or played.reason("localhost")
            credentials = CREDENTIALS.search(reason) is not None
            self.events.put(Refused(machine=name, reason=reason, credentials=credentials))

    def _wanted(self, name: str) -> dict[str, Any]:
        if name.endswith(CACHE):
            return {"name": name, "type": self.site.cache_type, "spot": False}
        return {"name": name, "type": self.site.type, "spot": self.site.spot}

    def _known(self, name: str) -> dict[str, Any]:
        """What is known of a machine that is up."""
        inventory = _json(self.site.folder / "inventory" / f"{name}.json")
        hosts = inventory.get("kiln_machines", {}).get("hosts", {})
        return dict(hosts.get(name, {}).get("kiln_machine", {}))

    def _prepare(self, machine: str) -> None:
        played = self.playbooks.play("prepare.yml", machine=machine, on_task=self._say_of(machine))
        if played.ok:
            cache = _json(self.site.folder / "cache.json") if machine.endswith(CACHE) else {}
            self.events.put(Prepared(machine=machine, cache=str(cache.get("url", ""))))
        else:
            self.events.put(Failed(machine=machine, reason=played.reason(machine)))

    def _attend(self, machine: str) -> None:
        """Look whether a cache runs, until nobody wants to know any more."""
        while not self.stopped.is_set() and machine not in self.given_up:
            asked = self._ssh(machine, "systemctl is-active --quiet kiln-cache")
            reason = asked.tail[-300:] or "its cache does not run"
            self.events.put(Heard(machine=machine) if asked.ok else Silent(machine=machine, reason=reason))
            self.stopped.wait(self.site.poll)

    def _look(self, machine: str) -> None:
        reason = "no answer"
        for _ in range(LOOKS):
            asked = self._ssh(machine, "sudo kiln-job status")
            if asked.ok:
                jobs = {config: str(job["state"]) for config, job in json.loads(asked.stdout).items()}
                self.events.put(Looked(machine=machine, jobs=jobs))
                return
            reason = asked.tail[-300:] or reason
            self.stopped.wait(self.site.poll)
        self.events.put(Failed(machine=machine, reason=reason))

    def _remove(self, machine: str) -> None:
        with self.provider:
            played = self.playbooks.play("down.yml", variables={"kiln_only": [machine]})
        if played.ok:
            self.events.put(Removed(machine=machine))
        else:
            self.events.put(Failed(machine=machine, reason=played.reason("localhost")))

    def _down(self) -> None:
        self.stopped.set()
        self.playbooks.stop()
        files.remove(self.site.reserve)
        played = self.playbooks.play("down.yml", last=True)
        files.remove(self.site.folder / "runner")
        self.events.put(AllGone() if played.ok else Left(reason=played.reason("localhost")))

    # Builds

    def _start(self, order: Start) -> None:
        self.cells[order.machine] = order.config
        self._say(order.config, f"start on {order.machine}")
        played = self.playbooks.play(
            "build.yml",
            machine=order.machine,
            tags=("start",),
            variables={
                "kiln_cells": [order.config],
                "kiln_build_options": [*self.site.options],
                "kiln_cache": order.cache,
                "kiln_rebuild": True,
            },
        )
        if played.ok:
            self.events.put(Began(machine=order.machine, config=order.config))
        else:
            self.events.put(Failed(machine=order.machine, reason=played.reason(order.machine)))

    def _watch(self, order: Watch) -> None:
        """Follow a build until it has ended, or nobody wants to know any more."""
        machine, config = order.machine, order.config
        self.cells[machine] = config
        with Log(order.log) as log:
            while not self.stopped.is_set() and machine not in self.given_up:
                ended = self._seen(machine, config, log)
                if ended is not None:
                    self.events.put(ended)
                    return
                if not log.more:
                    self.stopped.wait(self.site.poll)

    def _seen(self, machine: str, config: str, log: Log) -> Ended | None:
        """Look once at a build; returns how it ended once all that it said is here."""
        asked = self._ssh(machine, log.question(config))
        try:
            job, lines = log.take(asked.stdout, config) if asked.ok else ({}, [])
        except ValueError as error:
            asked = dataclasses.replace(asked, exit_code=1, tail=f"{machine} answers nonsense: {error}")
            job, lines = {}, []
        if not asked.ok:
            self.events.put(Silent(machine=machine, reason=asked.tail[-300:]))
            return None
        self.events.put(Heard(machine=machine))
        for step, text in lines:
            self.events.put(Line(config=config, step=step, text=text))
        return None if log.more else _ended(machine, config, job)

    def _collect(self, machine: str, config: str) -> None:
        self._say(config, f"bring home from {machine}")
        played = self.playbooks.play("collect.yml", machine=machine, variables={"kiln_cells": [config]})
        folder = self.site.folder / "collected" / machine / config
        if not played.ok:
            reason = played.reason(machine)
            if NO_ROOM in reason:
                raise DiskFull(f"no room for {config} from {machine}", why=reason)
            corrupt = "HASH MISMATCH" in reason
            self.events.put(NotHome(machine=machine, config=config, reason=reason, corrupt=corrupt))
            return
        try:
            home = arrival.read(folder, machine=machine, config=config)
            packages = self.keep(config, home.packages)
        except (HashMismatch, BrokenPackage) as error:
            files.remove(folder)  # so that it comes anew
            self.events.put(NotHome(machine=machine, config=config, reason=str(error), corrupt=True))
            return
        self.events.put(arrival.kept(home, packages))

    def _say_of(self, *machines: str) -> Callable[[str], None]:
        """Tell what a playbook does as a step of the cells that machines are for."""

        def say(task: str) -> None:
            for machine in machines:
                if machine in self.cells:
                    self._say(self.cells[machine], task)

        return say

    def _say(self, config: str, step: str) -> None:
        self.events.put(Line(config=config, step=step, text=""))

    def _ssh(self, machine: str, words: str) -> command.Result:
        """Run a command on a machine, over the way that the run's folder knows."""
        config = self.site.folder / "ssh" / f"{machine}.config"
        return command.capture(
            ("ssh", "-F", str(config), machine, words),
            env=self.site.marked,
            timeout=SSH_SECONDS,
            secrets=self.site.secrets,
        )


def _ended(machine: str, config: str, job: Mapping[str, Any]) -> Ended | None:
    """Return how a build ended, None while it goes on."""
    state, result, code = status_of(job)
    if state == "running":
        return None
    if state != "ended":
        return Ended(machine=machine, config=config, exit_code=None, reason="its build is gone: was it restarted?")
    if result == "oom-kill":
        code = OutOfMemory.exit_code
    return Ended(machine=machine, config=config, exit_code=code, reason="" if code == 0 else result)


def _told(line: str) -> dict[str, Any]:
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _json(path: Path) -> dict[str, Any]:
    """What a file of the run's folder holds; nothing where there is none."""
    try:
        return _told(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
