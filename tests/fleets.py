"""A simulated fleet: workers that are provisioned, build and fail under a simulated clock, with injected faults.

kiln's own planner and supervisor decide; only the executor of their commands is simulated.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln.build.job import collected
from kiln.cli.fleet.arguments import add_arguments
from kiln.cli.fleet.options import parse_options
from kiln.fleet import protocol
from kiln.fleet.model import LIFETIME, MachineType, Offer
from kiln.fleet.options import FleetOptions
from kiln.fleet.plan.plan import Assumptions
from kiln.fleet.protocol import ListedMachine
from kiln.fleet.records import FleetLedger, RunRecorder
from kiln.fleet.run_config import FleetRunConfig
from kiln.state.results import JobEstimate, StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kiln.state.results import ConfigRun, MatrixReport, Progress, RunCost

HOUR = 3600.0
POLL = 15.0
LEASE = 1.5 * HOUR  # of new and prepared workers
NEVER = float("inf")
SECOND = "#2"  # the end of the key of a machine that has another's name, or that nobody has requested
NOTICE = 120.0  # seconds between the notice to a spot worker and its end

MACHINE = MachineType(
    provider="local",
    type="compute-16",
    name="made-up.16",
    cores=16,
    memory=64,
    disk=200,
    hourly=0.8,
    spot_hourly=0.3,
    currency="EUR",
    billed=1,
    region="",
    source="made up for tests",
    date="2026-11-21",
)


def fleet_options(*words: str, environment: Mapping[str, str] | None = None) -> FleetOptions:
    """Return the options of a command line of ``kiln fleet``."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parse_options(parser.parse_args(words), environment or {})


def estimates(configs: int, *, hours: float = 3.0, warm: float = 1.0, groups: int = 3) -> tuple[JobEstimate, ...]:
    """Return configs with equal durations, shorter after the first of their group."""
    return tuple(
        JobEstimate(
            config=f"config{number:02d}",
            group=f"cuda{number % groups}",
            cold=hours * HOUR,
            warm=hours * HOUR * warm,
        )
        for number in range(configs)
    )


def lower_bound(cold: float, warm: float, groups: Sequence[int], workers: int) -> float:
    """Return a time that no schedule of groups of these sizes on so many workers without a cache can stay below.

    In a time T a worker that builds for a group compiles it (``cold``) and builds at most q = 1 + (T - cold) / warm of
    its configs. So a group of k configs needs ceil(k / q) workers that compile it; a worker compiles at most T / cold
    times; the builds of all workers, with these compiles, take at most T for each worker; and a worker with c compiles
    builds at most c + min((T - c * cold) / warm, c * (k - 1)) configs, k being the size of the largest group. Each of
    these grows with T, so the bound is the smallest T that meets all of them.
    """
    low, high = 0.0, cold * len(groups) + warm * sum(groups)
    while high - low > 1e-6 * cold:
        middle = (low + high) / 2
        low, high = (low, middle) if _is_possible(middle, cold, warm, groups, workers) else (middle, high)
    return low


def _is_possible(time: float, cold: float, warm: float, groups: Sequence[int], workers: int) -> bool:
    rounding = 1e-6
    compiles = int(time / cold + rounding)  # of a worker
    if compiles == 0:
        return False
    configs = max(
        count + min(int((time - count * cold) / warm + rounding), count * (max(groups) - 1))
        for count in range(1, compiles + 1)
    )
    each = 1 + int((time - cold) / warm + rounding)  # configs of a group on one worker
    holders = [-(-size // each) for size in groups]
    work = sum(count * cold + (size - count) * warm for count, size in zip(holders, groups, strict=True))
    return workers * configs >= sum(groups) and workers * compiles >= sum(holders) and work <= workers * time + rounding


def run_config(configs: Sequence[JobEstimate], **more: Any) -> FleetRunConfig:
    """Return the configuration of a run; ``more`` are its fields, or those of its options or its assumptions.

    Each config is tried on three workers, and three lost ones are replaced, if not said otherwise.
    """
    own = {item.name for item in dataclasses.fields(FleetRunConfig)}
    of_options = {item.name for item in dataclasses.fields(FleetOptions)} - own
    attempts, is_strict = more.pop("attempts", 3), more.pop("is_strict", True)
    one = {more.pop("machine_type", MACHINE): more.pop("max_workers", 2)}
    types = more.pop("type_workers", one)
    offers = {kind: (Offer(machine_type=kind, spot=more.get("spot", False)),) for kind in types}
    offers |= more.pop("type_offers", {})
    options = {name: value for name, value in more.items() if name in of_options}
    overheads = {name: value for name, value in more.items() if name not in own | of_options}
    fields = {"id": "r1", "command": "", "replacements": 3, **{name: more[name] for name in own & more.keys()}}
    return FleetRunConfig(
        estimates=tuple(configs),
        max_workers_by_type=types,
        type_offers=offers,
        options=FleetOptions(attempts=attempts if is_strict else None, **options),
        assumptions=dataclasses.replace(Assumptions.read(), **overheads),
        attempts=attempts,
        **fields,
    )


class Killed(BaseException):
    """The controller is killed; nothing of it runs after this."""


@dataclass(slots=True, kw_only=True)
class SimulatedWorker:
    """A simulated worker; ``jobs`` are the end times of its builds, ``disk`` the groups that it has compiled."""

    born: float
    dies: float
    lease: float
    serial: int
    jobs: dict[str, float] = field(default_factory=dict)
    disk: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class Faults:
    """The injected faults: by the name of a worker or a config, with a count or a second of the run.

    ``preemption`` is the share of workers that die in an hour, with ``notice`` two minutes before that; each worker
    dies after ``life`` seconds at the latest;
    ``half_made`` workers are refused though they exist; ``codes`` are the exit codes of configs that fail
    in their ``failing_step``; ``scarce`` are the spans in which the provider has no workers of an offer, ``unprepared``
    the workers whose preparation fails, ``hiccups`` those for which it fails
    so many times,
    ``foreign`` configs whose first results have other inputs, ``full`` the workers whose disk is full, ``read_only``
    those whose disk is read-only, ``no_room`` the span in which the controller's is full, ``no_capacity`` that in which
    the provider refuses all; ``stopped`` are the times of Ctrl-C. In the spans ``offline`` the controller has no
    network, in ``blocked`` it cannot reach its workers;
    ``cut`` is the time from which a single worker cannot be reached. From the time ``shut_off`` on, a worker is
    stopped, and its provider lists it as such; in the spans ``unlisted`` it does not list a worker, which runs. Of the
    workers ``doubled`` it creates two machines; ``strays`` are machines that nobody has requested, with the times from
    which they exist. A tear-down fails (``stays``) this many times,
    with or without a list of workers (``listed``). New workers are refused by their ``credentials``, or from the time
    ``expired`` on, when nothing else is allowed either.
    """

    preemption: float = 0.0
    life: float = NEVER
    notice: bool = False
    dies: Mapping[str, float] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    half_made: frozenset[str] = frozenset()
    no_capacity: tuple[float, float] = (NEVER, NEVER)
    scarce: Mapping[tuple[str, bool, str], tuple[float, float]] = field(default_factory=dict)
    credentials: bool = False
    expired: float = NEVER
    unprepared: frozenset[str] = frozenset()
    hiccups: Mapping[str, int] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    full: frozenset[str] = frozenset()
    read_only: frozenset[str] = frozenset()
    no_room: tuple[float, float] = (NEVER, NEVER)
    failing_step: str = "compile"
    corrupt: Mapping[str, int] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    stays: int = 0
    listed: bool = True
    killed: float = NEVER
    stopped: Sequence[float] = ()
    offline: Sequence[tuple[float, float]] = ()
    blocked: Sequence[tuple[float, float]] = ()
    cut: Mapping[str, float] = field(default_factory=dict)
    shut_off: Mapping[str, float] = field(default_factory=dict)
    unlisted: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    doubled: frozenset[str] = frozenset()
    strays: Mapping[str, float] = field(default_factory=dict)


class Simulation:
    """The simulated workers, and the executor of their commands: see `kiln.fleet.protocol.WorkerExecutor`."""

    refusal = 10.0  # seconds until the provider refuses a worker
    lifetime = LIFETIME

    def __init__(
        self,
        estimates: Sequence[JobEstimate],
        *,
        faults: Faults | None = None,
        up: float = 240.0,
        home: float = 60.0,
        down: float = 30.0,
        seed: int = 0,
        cache: bool = False,
    ) -> None:
        self.estimates = {estimate.config: estimate for estimate in estimates}
        self.faults = faults or Faults()
        self.up, self.home, self.down, self.cache = up, home, down, cache
        self.cached: set[str] = set()
        self.random = random.Random(seed)
        self.clock = self.began = 1_790_000_000.0
        self.workers: dict[str, SimulatedWorker] = {}
        self.paid: list[tuple[str, float, float]] = []
        self.commands: list[protocol.Command] = []
        self.built: list[tuple[str, str]] = []
        self._due: list[tuple[float, int, protocol.Event | Callable[[], protocol.Event | None]]] = []
        self._serial = itertools.count(1)
        self._stops = list(self.faults.stopped)
        self._corrupt = dict(self.faults.corrupt)
        self._stays = self.faults.stays
        self._hiccups = dict(self.faults.hiccups)
        self._unwatched: set[str] = set()
        self._killed_builds: set[tuple[str, str]] = set()
        self._noticed: set[str] = set()
        self._strays: set[str] = set()

    # The executor

    def now(self) -> float:
        return self.clock

    def next_event(self, until: float) -> protocol.Event | None:
        while True:
            first = self._due[0][0] if self._due else NEVER
            if self._stops or self.faults.killed < NEVER:
                self._interrupt(min(until, first))
            if first > until or not self._due:
                self.clock = max(self.clock, until)
                return None
            when, _, what = heapq.heappop(self._due)
            self.clock = max(self.clock, when)
            event = what() if callable(what) else what
            if event is not None:
                return event

    def _interrupt(self, when: float) -> None:
        if when - self.began >= self.faults.killed:
            self.clock = max(self.clock, self.began + self.faults.killed)
            raise Killed
        if self._stops and when - self.began >= self._stops[0]:
            self.clock = max(self.clock, self.began + self._stops.pop(0))
            raise KeyboardInterrupt

    def revive(self) -> None:
        """Let a new controller replace a killed one; builds went on meanwhile."""
        self.faults.killed = NEVER
        self._due.clear()

    def submit(self, command: protocol.Command) -> None:
        if self.clock - self.began >= self.faults.killed:
            raise Killed
        self.commands.append(command)
        if isinstance(command, protocol.ProvisionWorkers):
            for name in command.workers:
                self._bring(name, command)
        elif isinstance(command, protocol.WatchService):
            self._soon(0.0, lambda: self._attended(command.worker))
        elif isinstance(command, protocol.TearDownRun):
            self._due = [
                due for due in self._due if isinstance(due[2], protocol.ProvisionFailed)
            ]  # the provider's refusals still arrive
            heapq.heapify(self._due)
            self._soon(self.down, self._all_gone)
        else:
            since, until = self.faults.no_room
            if since <= self.clock - self.began < until and isinstance(
                command,
                protocol.PrepareWorker | protocol.StartBuild | protocol.CollectResults,
            ):
                self._soon(1.0, protocol.ControllerDiskFull(command=command, reason="0 B are free"))
                return
            seconds, what = self._carried_out(command)
            self._soon(seconds, what)

    def _renewed(self, command: protocol.RenewLease) -> protocol.Event:
        worker = self._alive(command.worker)
        if worker is None or self._unreachable(command.worker):
            return protocol.WorkerUnreachable(worker=command.worker)
        worker.lease = self.clock + command.seconds
        return protocol.LeaseRenewed(worker=command.worker)

    def _probed(self, workers: Sequence[str]) -> protocol.Event:
        alive = frozenset(name for name in list(self.workers) if self._alive(name) is not None)
        answers = frozenset(name for name in alive & set(workers) if not self._unreachable(name))
        expired = self._is_expired()
        machines = None if expired or self._within(self.faults.offline) else self._listed()
        reason = "ExpiredToken" if expired else ""
        return protocol.WorkersProbed(answers=answers, machines=machines, credentials=expired, reason=reason)

    def _listed(self) -> tuple[ListedMachine, ...]:
        """Return the machines that the provider lists."""
        for name, since in self.faults.strays.items():
            if self.clock >= self.began + since and name not in self._strays:
                self._strays.add(name)
                self._create(f"{name}{SECOND}", born=self.began + since)
        return tuple(
            ListedMachine(
                name=key.removesuffix(SECOND),
                owner="",
                id=str(worker.serial),
                type=MACHINE.type,
                ended=self._is_off(key),
                expires=worker.born + self.lifetime,
            )
            for key, worker in sorted(self.workers.items())
            if not self._within([self.faults.unlisted.get(key, (NEVER, NEVER))])
        )

    def _create(self, key: str, *, born: float, dies: float = NEVER) -> None:
        serial = next(self._serial)
        self.workers[key] = SimulatedWorker(born=born, dies=dies, lease=self.clock + LEASE, serial=serial)

    def _is_off(self, name: str) -> bool:
        """Return whether a worker is stopped: it is there, and charged for."""
        return bool(self.faults.shut_off) and self.clock - self.began >= self.faults.shut_off.get(name, NEVER)

    def _is_expired(self) -> bool:
        """Return whether the provider allows nothing any more by the credentials."""
        return self.clock - self.began >= self.faults.expired

    def _within(self, spans: Sequence[tuple[float, float]]) -> bool:
        if not spans:
            return False
        second = self.clock - self.began
        for since, until in spans:  # noqa: SIM110 - a generator takes three times as long
            if since <= second < until:
                return True
        return False

    def _unreachable(self, name: str) -> bool:
        faults = self.faults
        cut = bool(faults.cut) and self.clock - self.began >= faults.cut.get(name, NEVER)
        return cut or self._within(faults.offline) or self._within(faults.blocked)

    def _quiet_for(self, worker: SimulatedWorker) -> float:
        """Return for how long neither a worker nor its network will change."""
        changes = [*self.faults.offline, *self.faults.blocked, *((since, NEVER) for since in self.faults.cut.values())]
        changes += [(worker.dies - NOTICE - self.began, NEVER)] if self.faults.notice else []
        changes += [(since, NEVER) for since in self.faults.shut_off.values()]
        turns = [self.began + item for item in itertools.chain(*changes) if self.began + item > self.clock]
        return max(min(worker.dies, worker.lease, self.clock + HOUR, *turns) - self.clock, 0.001)

    def _carried_out(  # noqa: PLR0911 - one return for each command
        self,
        command: protocol.PrepareWorker
        | protocol.QueryJobs
        | protocol.StartBuild
        | protocol.StopBuild
        | protocol.FollowBuild
        | protocol.CollectResults
        | protocol.TerminateWorker
        | protocol.RenewLease
        | protocol.ProbeWorkers,
    ) -> tuple[float, Callable[[], protocol.Event | None]]:
        """Return the duration of a command to a worker, and its effect."""
        match command:
            case protocol.PrepareWorker():
                return self.up / 2, lambda: self._prepared(command.worker)
            case protocol.QueryJobs():
                return 2.0, lambda: self._looked(command.worker)
            case protocol.StartBuild():
                return 2.0, lambda: self._started(command.worker, command.config)
            case protocol.StopBuild():
                return 5.0, lambda: self._stopped(command.worker, command.config)
            case protocol.RenewLease():
                return 0.5, lambda: self._renewed(command)
            case protocol.ProbeWorkers():
                return 5.0, lambda: self._probed(command.workers)
            case protocol.FollowBuild():
                return 0.0, lambda: self._watched(command.worker, command.config)
            case protocol.CollectResults():
                return self.home, lambda: self._collected(command.worker, command.config)
            case protocol.TerminateWorker():
                self._unwatched |= set() if command.id else {command.worker}
                return self.down, lambda: self._terminated(command)

    # The effects of commands

    def _soon(self, seconds: float, what: protocol.Event | Callable[[], protocol.Event | None]) -> None:
        heapq.heappush(self._due, (self.clock + seconds, next(self._serial), what))

    def _alive(self, name: str) -> SimulatedWorker | None:
        """Return a worker unless it has died or its lease is over."""
        worker = self.workers.get(name)
        if worker is not None and self._is_off(name):
            return None
        if worker is not None and self.clock >= min(worker.dies, worker.lease):
            self._bury(name, min(worker.dies, worker.lease))
            return None
        return worker

    def bury(self) -> None:
        """End the leases of all workers that remain."""
        for name, worker in list(self.workers.items()):
            self._bury(name, min(worker.dies, worker.lease))

    def _bury(self, name: str, when: float) -> None:
        worker = self.workers.pop(name)
        self.paid.append((name, worker.born, when))

    def _bring(self, name: str, command: protocol.ProvisionWorkers) -> None:
        if self._within(self.faults.offline):
            self._soon(
                20.0,
                protocol.CommandUndelivered(
                    command=protocol.ProvisionWorkers(workers=(name,), offers=command.offers),
                    reason="could not connect",
                ),
            )
        elif self._alive(name) is not None:
            self._soon(5.0, protocol.WorkerProvisioned(worker=name, id=str(self.workers[name].serial)))
        elif self.faults.credentials or self._is_expired():
            self._soon(2.0, protocol.ProvisionFailed(worker=name, reason="not authorized", credentials=True))
        elif name in self.faults.refused or self._within([self.faults.no_capacity]):
            self._soon(self.refusal, protocol.ProvisionFailed(worker=name, reason="quota exceeded"))
        elif self._within([self.faults.scarce.get(command.offers[name], (NEVER, NEVER))]):
            refused = protocol.ProvisionFailed(worker=name, reason="no capacity", scarce=True)
            self._soon(self.refusal, refused)
        else:
            if name in self.faults.half_made:
                self._soon(30.0, protocol.ProvisionFailed(worker=name, reason="the playbook failed"))
            self._create_requested(name)
            if name not in self.faults.half_made:
                self._soon(self.up / 2, lambda: self._is_up(name))

    def _create_requested(self, name: str) -> None:
        rate = self.faults.preemption
        life = min(self.faults.life, self.random.expovariate(rate / HOUR) if rate else NEVER)
        dies = self.faults.dies.get(name)
        if name in self.workers:  # a stopped one is removed
            self._bury(name, self.clock)
        self._create(name, born=self.clock, dies=self.clock + life if dies is None else self.began + dies)
        if name in self.faults.doubled:
            self._create(f"{name}{SECOND}", born=self.clock)

    def _is_up(self, name: str) -> protocol.Event:
        worker = self._alive(name)
        return (
            protocol.CommandFailed(worker=name, reason="never came up")
            if worker is None
            else protocol.WorkerProvisioned(worker=name, id=str(worker.serial))
        )

    def _prepared(self, name: str) -> protocol.Event:
        if self._unreachable(name):
            return protocol.CommandUndelivered(command=protocol.PrepareWorker(worker=name), reason="no route to host")
        if self._alive(name) is None or name in self.faults.unprepared:
            return protocol.CommandFailed(worker=name, reason="cannot be prepared")
        if self._hiccups.get(name, 0) > 0:
            self._hiccups[name] -= 1
            return protocol.CommandFailed(worker=name, reason="Failed to fetch a package")
        self.workers[name].lease = self.clock + LEASE
        return protocol.WorkerPrepared(worker=name, cache="http://cache" if name.endswith("cache") else "")

    def _attended(self, name: str) -> protocol.Event | None:
        worker = self._alive(name)
        if name in self._unwatched:
            return None
        if worker is None or self._unreachable(name):
            self._soon(POLL, lambda: self._attended(name))
            return protocol.WorkerUnreachable(worker=name)
        if self.faults.notice and self.clock >= worker.dies - NOTICE and name not in self._noticed:
            self._noticed.add(name)
            self._soon(0.001, lambda: self._attended(name))
            return protocol.ReclaimNotice(worker=name, at=worker.dies)
        self._soon(self._quiet_for(worker), lambda: self._attended(name))
        return protocol.Heartbeat(worker=name)

    def _looked(self, name: str) -> protocol.Event:
        worker = self._alive(name)
        if worker is None or self._unreachable(name):
            return protocol.CommandUndelivered(command=protocol.QueryJobs(worker=name), reason="no answer")
        states = {config: "running" if end > self.clock else "ended" for config, end in worker.jobs.items()}
        return protocol.JobsListed(worker=name, jobs=states)

    def _started(self, name: str, config: str) -> protocol.Event:
        worker = self._alive(name)
        if worker is None or self._unreachable(name):
            return protocol.CommandUndelivered(
                command=protocol.StartBuild(worker=name, config=config), reason="no answer"
            )
        estimate = self.estimates[config]
        quick = estimate.group in (worker.disk | self.cached) and estimate.warm < estimate.cold
        broken = name in self.faults.full | self.faults.read_only
        seconds = 600.0 if broken else estimate.warm if quick else estimate.cold
        worker.jobs.setdefault(config, self.clock + seconds)
        return protocol.BuildStarted(worker=name, config=config)

    def _stopped(self, name: str, config: str) -> protocol.Event | None:
        worker = self._alive(name)
        if worker is None or self._unreachable(name):
            return protocol.CommandUndelivered(
                command=protocol.StopBuild(worker=name, config=config), reason="no answer"
            )
        self._killed_builds.add((name, config))
        worker.jobs[config] = self.clock
        self._soon(0.0, lambda: self._watched(name, config))
        return None

    def _watched(self, name: str, config: str) -> protocol.Event | None:
        worker = self._alive(name)
        if name in self._unwatched:
            return None
        if worker is None or self._unreachable(name):
            self._soon(POLL, lambda: self._watched(name, config))
            return protocol.WorkerUnreachable(worker=name)
        if config not in worker.jobs:  # a new worker of the same name
            return protocol.BuildFinished(worker=name, config=config, exit_code=None)
        if self.faults.notice and self.clock >= worker.dies - NOTICE and name not in self._noticed:
            self._noticed.add(name)
            self._soon(0.001, lambda: self._watched(name, config))
            return protocol.ReclaimNotice(worker=name, at=worker.dies)
        if worker.jobs[config] > self.clock:
            soon = min(worker.jobs[config] - self.clock, self._quiet_for(worker))
            self._soon(max(soon, 0.001), lambda: self._watched(name, config))
            return protocol.Heartbeat(worker=name)
        return self._ended(name, worker, config)

    def _ended(self, name: str, worker: SimulatedWorker, config: str) -> protocol.Event:
        if (name, config) in self._killed_builds:
            return protocol.BuildFinished(worker=name, config=config, exit_code=None, reason="signal")
        if name in self.faults.read_only:
            return protocol.BuildFinished(worker=name, config=config, exit_code=None, unfit=True)
        code = 16 if name in self.faults.full else self.faults.codes.get(config, 0)
        if code == 0:
            self.built.append((config, name))
            worker.disk.add(self.estimates[config].group)
            self.cached |= {self.estimates[config].group} if self.cache else set()
        return protocol.BuildFinished(worker=name, config=config, exit_code=code)

    def _collected(self, name: str, config: str) -> protocol.Event:
        if self._alive(name) is None or self._unreachable(name):
            return protocol.CommandUndelivered(
                command=protocol.CollectResults(worker=name, config=config), reason="no route to host"
            )
        if config in self.faults.foreign:
            self.faults.foreign.remove(config)
            self.workers[name].jobs.pop(config)
            return protocol.CollectFailed(worker=name, config=config, reason="it is of other inputs", foreign=True)
        if self._corrupt.get(config, 0) > 0:
            self._corrupt[config] -= 1
            return protocol.CollectFailed(worker=name, config=config, reason="its hash is another", corrupt=True)
        failed = self.faults.codes.get(config, 0) != 0
        steps = (StepReport(title=self.faults.failing_step, seconds=1.0, failed=True),) if failed else ()
        return collected.ResultsCollected(worker=name, config=config, steps=steps)

    def _removed(self, name: str) -> protocol.Event:
        if self._within(self.faults.offline):
            return protocol.CommandFailed(worker=name, reason="could not connect")
        if self._is_expired():
            return protocol.CommandFailed(worker=name, reason="RequestExpired")
        self._alive(name)  # one that has died is no longer charged for
        if name in self.workers:
            self._bury(name, self.clock)
        return protocol.WorkerTerminated(worker=name)

    def _terminated(self, command: protocol.TerminateWorker) -> protocol.Event:
        """Remove all machines of a worker's name, or that of an id."""
        keys = [command.worker, f"{command.worker}{SECOND}"]
        if command.id:
            keys = [key for key, worker in self.workers.items() if str(worker.serial) == command.id]
        events = [self._removed(key) for key in keys]
        failure = next((event for event in events if isinstance(event, protocol.CommandFailed)), None)
        if failure is not None:
            return protocol.CommandFailed(worker=command.worker, reason=failure.reason)
        return protocol.WorkerTerminated(worker=command.worker)

    def _all_gone(self) -> protocol.Event:
        if self._stays > 0:
            self._stays -= 1
            return protocol.TearDownFailed(reason="the provider does not answer", unknown=not self.faults.listed)
        if self._within(self.faults.offline):
            return protocol.TearDownFailed(reason="could not connect", unknown=True)
        if self._is_expired():
            return protocol.TearDownFailed(reason="RequestExpired", unknown=True, credentials=True)
        for name in list(self.workers):
            self._removed(name)
        return protocol.RunTornDown()


class NullStore(FleetLedger):
    """A ledger that keeps nothing, for many simulated runs."""

    def __init__(self) -> None: ...

    def begin_run(self, report: MatrixReport) -> int:
        return 1

    def update_config(self, run: int, config: ConfigRun) -> None: ...
    def update_cost(self, run: int, cost: RunCost) -> None: ...
    def end_run(self, run: int, *, at: float | None = None) -> None: ...
    def fleet_run(self, run: str) -> None: ...
    def begin_fleet(self, run: object) -> None: ...
    def end_fleet(self, run: str) -> None: ...
    def store_worker(self, run: str, worker: object) -> None: ...
    def store_job(self, run: str, job: object) -> None: ...


class NullObserver:
    """An observer that shows nothing."""

    def run_began(self, report: MatrixReport) -> None: ...
    def config_changed(self, config: ConfigRun) -> None: ...
    def output_line_received(self, config: str, step: str, line: str) -> None: ...
    def progress_changed(self, config: str, progress: Progress) -> None: ...
    def run_cost_changed(self, cost: RunCost) -> None: ...
    def run_ended(self, report: MatrixReport) -> None: ...


def assumed_overheads(*, startup: float, collect: float, teardown: float, packages: float = 0.0) -> Assumptions:
    """Return kiln's own assumptions with other times besides building."""
    return dataclasses.replace(
        Assumptions.read(), startup=startup, collect=collect, teardown=teardown, packages=packages
    )


def null_recorder() -> RunRecorder:
    """Return a recorder that neither stores nor shows anything."""
    return RunRecorder(NullStore(), NullObserver())
