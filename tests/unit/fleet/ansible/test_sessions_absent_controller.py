"""A controller that was away, as a laptop asleep is: its clock jumps, and nothing was renewed meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.fleet.ansible.sessions import CommandThreads, EventSession
from kiln.fleet.protocol import Event, ProvisionWorkers
from kiln.fleet.run_config import FleetRunConfig
from kiln.fleet.supervisor import Supervisor
from kiln.state.results import ConfigState
from tests.fleets import HOUR, LEASE, MACHINE, Simulation, estimates, null_recorder

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
    config = FleetRunConfig(id="r1", command="", machine_type=MACHINE, estimates=TWO, max_workers=2, startup=240.0)
    run = Supervisor(config, executor=simulation, recorder=null_recorder())
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
