"""The supervisor's hands on real machines: playbooks through ansible-runner, builds followed over ssh.

Each order is carried out in a thread of its own and ends in an event. What is started here carries the run's mark in
its environment, and secrets only there.
"""

from __future__ import annotations

import dataclasses
import json
import queue
import re
import shlex
import threading
import time
from typing import TYPE_CHECKING, Any

from kiln import command, files
from kiln.errors import BrokenPackage, DiskFull, HashMismatch, KilnError, OutOfMemory
from kiln.fleet import arrival
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
from kiln.fleet.playbooks import LITTLE, Playbooks, told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kiln.fleet.orders import Event, Order
    from kiln.fleet.playbooks import Site
    from kiln.model.artifact import PackageReport

SSH_SECONDS = 60.0  # for one look at a machine
START_SECONDS = 600.0  # for the start of a build, which returns once it runs
LOOKS = 3  # at a machine that may be there again
RESERVE = 8 << 20  # bytes kept for the tear-down, which writes into the run's folder, too
NO_ROOM = "NO ROOM"  # in the words of the module that brings packages home
CREDENTIALS = re.compile(
    r"AuthFailure|UnauthorizedOperation|InvalidClientTokenId|SignatureDoesNotMatch|UnrecognizedClient|AccessDenied"
    r"|ExpiredToken|InvalidAccessKeyId|[Uu]nable to locate credentials|NoCredentials|HTTP 40[13]"
    r"|requires authentication|[Uu]nauthorized|not authorized|Missing value auth",
)


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
        played = self.playbooks.play(
            "prepare.yml",
            machine=machine,
            on_task=self._say_of(machine),
            variables={"kiln_build_options": [*self.site.options]},
        )
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
        ok, reason = self._started_with_cache(order) if order.cache else self._started(order)
        if ok:
            self.events.put(Began(machine=order.machine, config=order.config))
        else:
            self.events.put(Failed(machine=order.machine, reason=reason))

    def _started(self, order: Start) -> tuple[bool, str]:
        """Start a build that is told no more than the machine was when it was made ready."""
        words = f"sudo kiln-job start {shlex.quote(order.config)}"
        asked = self._ssh(order.machine, words, seconds=START_SECONDS)
        return asked.ok, asked.tail[-300:] or "it did not answer"

    def _started_with_cache(self, order: Start) -> tuple[bool, str]:
        """Start a build that is let in by the cache, and told its password."""
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
        return played.ok, "" if played.ok else played.reason(order.machine)

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

    def _seen(self, machine: str, config: str, log: Log) -> Ended | None:
        """Look once at a build; returns how it ended once all that it said is here.

        The machine itself lets a look wait, so that an end is heard at once; one that is silent is not asked at once.
        """
        asked = self._ssh(machine, log.question(config, self.site.poll), seconds=SSH_SECONDS + self.site.poll)
        try:
            job, lines = log.take(asked.stdout, config) if asked.ok else ({}, [])
        except ValueError as error:
            asked = dataclasses.replace(asked, exit_code=1, tail=f"{machine} answers nonsense: {error}")
            job, lines = {}, []
        if not asked.ok:
            self.events.put(Silent(machine=machine, reason=asked.tail[-300:]))
            self.stopped.wait(self.site.poll)
            return None
        self.events.put(Heard(machine=machine))
        for step, text in lines:
            self.events.put(Line(config=config, step=step, text=text))
        return None if log.more else _ended(machine, config, job)

    def _collect(self, machine: str, config: str) -> None:
        self._say(config, f"bring home from {machine}")
        folder = self.site.folder / "collected" / machine / config
        if reason := self._not_fetched(machine, config):
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

    def _not_fetched(self, machine: str, config: str) -> str:
        """Bring home what a build left, by the module of collect.yml alone; returns why it did not come, if so."""
        if self.stopped.is_set():
            return "the run is being stopped"
        told = {"machine": machine, "folder": str(self.site.folder), "cell": config}
        module = self.site.playbooks / "library" / "kiln_collect.py"
        words = (self.site.python, "-I", module, json.dumps({"ANSIBLE_MODULE_ARGS": told}))
        asked = command.capture(words, env=self.site.marked, secrets=self.site.secrets)
        if asked.ok:
            return ""
        files.require_room(self.site.folder, LITTLE, for_what="what was built, which did not come home,")
        try:
            return str(json.loads(asked.stdout)["msg"])
        except (ValueError, KeyError, TypeError):
            return asked.tail[-500:] or "the module that fetches did not end"

    def _say_of(self, *machines: str) -> Callable[[str], None]:
        """Tell what a playbook does as a step of the cells that machines are for."""

        def say(task: str) -> None:
            for machine in machines:
                if machine in self.cells:
                    self._say(self.cells[machine], task)

        return say

    def _say(self, config: str, step: str) -> None:
        self.events.put(Line(config=config, step=step, text=""))

    def _ssh(self, machine: str, words: str, *, seconds: float = SSH_SECONDS) -> command.Result:
        """Run a command on a machine, over the way that the run's folder knows."""
        config = self.site.folder / "ssh" / f"{machine}.config"
        return command.capture(
            ("ssh", "-F", str(config), machine, words),
            env=self.site.marked,
            timeout=seconds,
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


def _json(path: Path) -> dict[str, Any]:
    """What a file of the run's folder holds; nothing where there is none."""
    try:
        return told(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
