"""Every command of a supervisor ends in an event, whatever fails, and the time of its leases never goes back."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BuildFailed, DiskFull
from kiln.fleet.ansible.sessions import CommandThreads, EventSession
from kiln.fleet.protocol import (
    CollectFailed,
    CollectResults,
    CommandFailed,
    ControllerDiskFull,
    Heartbeat,
    LeaseRenewed,
    ProbeWorkers,
    ProvisionFailed,
    ProvisionWorkers,
    RenewLease,
    TearDownFailed,
    TearDownRun,
    TerminateWorker,
    WorkersProbed,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.fleet.protocol import Command, Event

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
