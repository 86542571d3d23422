"""Every command ends in an event, and the time of leases never goes back."""

from __future__ import annotations

import errno
import queue
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BuildFailed, DiskFull
from kiln.fleet.ansible.sessions import CommandThreads, EventSession
from kiln.fleet.protocol import (
    CollectFailed,
    CollectResults,
    CommandFailed,
    ControllerDiskFull,
    Event,
    Heartbeat,
    LeaseRenewed,
    LogLine,
    ProbeWorkers,
    ProvisionFailed,
    ProvisionWorkers,
    RenewLease,
    TearDownFailed,
    TearDownRun,
    TerminateWorker,
    WorkersProbed,
)
from kiln.fleet.supervisor import Supervisor
from kiln.state.results import ConfigState
from tests.fleets import HOUR, LEASE, Simulation, estimates, null_recorder, run_config

if TYPE_CHECKING:
    from kiln.fleet.protocol import Command

RENEW = RenewLease(worker="w1", seconds=60.0)
COLLECT = CollectResults(worker="w1", config="a")
PROVISION = ProvisionWorkers(workers=("w1", "w2"))
FAILURE = BuildFailed("ssh ended")
REASON = "BuildFailed: ssh ended"


def events_of(folder: Path, command: Command, outcome: Event | Exception | None, count: int) -> list[Event]:
    """Return the next events after a command that its handler answers or fails with ``outcome``."""

    def handle(_session: EventSession, _command: Any) -> Event | None:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    threads = CommandThreads(EventSession(), folder, {type(command): handle})
    threads.submit(command)
    until = threads.now() + 10
    events = [threads.next_event(until) for _ in range(count)]
    assert threads.next_event(0) is None, "there are no more"
    return [event for event in events if event is not None]


def test_the_answer_of_a_command_is_an_event(tmp_path: Path) -> None:
    answer = LeaseRenewed(worker="w1")
    assert events_of(tmp_path, RENEW, answer, 1) == [answer]


@pytest.mark.parametrize(
    ("command", "events"),
    [
        (RENEW, [CommandFailed(worker="w1", reason=REASON)]),
        (PROVISION, [ProvisionFailed(worker=name, reason=REASON) for name in ("w1", "w2")]),
        (ProbeWorkers(workers=("w1",)), [WorkersProbed(answers=frozenset(), machines=None)]),
        (COLLECT, [CollectFailed(worker="w1", config="a", reason=REASON)]),
        (TearDownRun(), [TearDownFailed(reason=REASON, unknown=True)]),
    ],
)
def test_a_command_that_fails_has_the_event_of_its_kind(tmp_path: Path, command: Command, events: list[Event]) -> None:
    assert events_of(tmp_path, command, FAILURE, len(events)) == events


@pytest.mark.parametrize("error", [OSError("broken pipe"), ValueError("no JSON"), KeyError("msg"), TypeError("None")])
def test_an_unexpected_failure_is_an_event_too(tmp_path: Path, error: Exception) -> None:
    (event,) = events_of(tmp_path, RENEW, error, 1)
    assert event == CommandFailed(worker="w1", reason=f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("error", [DiskFull("no space", why="0 B free"), OSError(errno.ENOSPC, "no space left")])
def test_a_full_disk_is_reported_with_the_command_to_repeat(tmp_path: Path, error: Exception) -> None:
    for command in (COLLECT, PROVISION):
        (event,) = events_of(tmp_path, command, error, 1)
        assert isinstance(event, ControllerDiskFull)
        assert event.command == command
    (event,) = events_of(tmp_path, TearDownRun(), error, 1)
    assert isinstance(event, TearDownFailed), "a tear-down is not to be repeated when there is space"


@pytest.mark.parametrize(("machine", "abandoned"), [("", {"w1"}), ("i-1", set())])
def test_a_worker_that_is_terminated_is_no_longer_followed_but_one_of_its_former_machines_is_no_reason(
    tmp_path: Path, machine: str, abandoned: set[str]
) -> None:
    session = EventSession()
    threads = CommandThreads(session, tmp_path, {TerminateWorker: lambda *_: Heartbeat(worker="w1")})
    threads.submit(TerminateWorker(worker="w1", id=machine))
    assert session.abandoned == abandoned
    threads.next_event(threads.now() + 10)


def test_the_task_of_a_preparing_machine_is_one_that_the_playbook_names() -> None:
    session = EventSession(configs={"w1": "a"})
    report = session.task_reporter("prepare", "w1", "w2")
    for task in ("Copy the project", "Validating arguments against arg spec 'main' - A cache", "Start the cache"):
        report(task)
    steps = [session.events.get_nowait() for _ in range(session.events.qsize())]
    assert steps == [
        LogLine(config="a", step=f"prepare w1: {task}", text="") for task in ("Copy the project", "Start the cache")
    ]


def test_the_time_goes_on_where_the_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = CommandThreads(EventSession(), tmp_path, {})
    clock = [1000.0, 1010.0, 400.0, 405.0, 3.0, 5.0]
    monkeypatch.setattr(time, "time", lambda: clock.pop(0))
    assert [threads.now() for _ in range(6)] == [1000.0, 1010.0, 1010.0, 1015.0, 1015.0, 1017.0]


def test_the_time_follows_a_clock_that_is_set_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = CommandThreads(EventSession(), tmp_path, {})
    clock = [1000.0, 5000.0]
    monkeypatch.setattr(time, "time", lambda: clock.pop(0))
    assert [threads.now() for _ in range(2)] == [1000.0, 5000.0]


TWO = estimates(2, hours=3, groups=2)


class Sleeper(Simulation):
    """A simulation whose controller is away for some time, once; its workers go on."""

    def __init__(self, seconds: float, *, since: float) -> None:
        super().__init__(TWO)
        self.absence, self.since = seconds, since

    def next_event(self, until: float) -> Event | None:
        if self.absence and self.clock - self.began > self.since:
            self.clock, self.absence = self.clock + self.absence, 0.0
        return super().next_event(until)


class SetBack(Simulation):
    """A simulation whose controller's clock is set back after an hour; that of its workers is not."""

    def __init__(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(TWO)
        self.seconds = seconds
        self.executor = CommandThreads(EventSession(), Path(), {})
        monkeypatch.setattr("kiln.fleet.ansible.sessions.time.time", self.read_clock)

    def read_clock(self) -> float:
        return self.clock - (self.seconds if self.clock - self.began > HOUR else 0.0)

    def now(self) -> float:
        return self.executor.now()

    def next_event(self, until: float) -> Event | None:
        return super().next_event(self.clock + until - self.now())


def outcome(simulation: Simulation) -> tuple[set[ConfigState], int]:
    """Return the states in the end, and the number of workers that were requested."""
    run = Supervisor(run_config(TWO), executor=simulation, recorder=null_recorder())
    states = {entry.state for entry in run.execute_run().configs}
    requests = [
        name for command in simulation.commands if isinstance(command, ProvisionWorkers) for name in command.workers
    ]
    assert not simulation.workers
    return states, len(requests)


@pytest.mark.parametrize("seconds", [600.0, HOUR, LEASE - LEASE / 12 - 60])
def test_workers_are_alive_within_their_lease_and_their_builds_go_on(seconds: float) -> None:
    simulation = Sleeper(seconds, since=HOUR)
    states, requests = outcome(simulation)
    assert states == {ConfigState.DONE}
    assert requests == 2
    assert len(simulation.built) == 2
    assert simulation.clock - simulation.began < 3 * HOUR + 900, "no time is lost either"


def test_after_their_lease_the_builds_are_begun_again_on_others() -> None:
    states, requests = outcome(Sleeper(LEASE + 600, since=HOUR))
    assert states == {ConfigState.DONE}
    assert requests == 4


@pytest.mark.parametrize("seconds", [600.0, 2 * HOUR, 12 * HOUR])
def test_leases_are_renewed_though_the_clock_was_set_back(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = SetBack(seconds, monkeypatch)
    assert outcome(simulation) == ({ConfigState.DONE}, 2)
    assert simulation.clock - simulation.began < 3 * HOUR + 900


def test_an_event_is_waited_for_in_steps_between_which_a_ctrl_c_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = [1000.0], list[float]()

    class Silent(queue.SimpleQueue[Event]):
        def get(self, block: bool = True, timeout: float | None = None) -> Event:
            assert timeout is not None
            waits.append(timeout)
            clock[0] += timeout
            raise queue.Empty

    monkeypatch.setattr("kiln.fleet.ansible.sessions.time.time", lambda: clock[0])
    executor = CommandThreads(EventSession(events=Silent()), Path(), {})
    assert executor.next_event(1002.5) is None
    assert waits == [1.0, 1.0, 0.5]
