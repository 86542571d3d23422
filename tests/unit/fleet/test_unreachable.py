"""The last worker of a run is silent: another one shows whether that is its own fault."""

from __future__ import annotations

import dataclasses
import random
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import MachinesUnknown
from kiln.fleet.records import RunRecorder
from kiln.fleet.run_config import FleetRunConfig
from kiln.fleet.supervisor import Supervisor
from kiln.state.results import ConfigState
from tests.fleets import HOUR, MACHINE, Faults, NullObserver, NullStore, Simulation, estimates, null_recorder

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.usefixtures("rare_forecasts")

ONE, TWO, THREE = "kiln-r1-1", "kiln-r1-2", "kiln-r1-3"
SHORT, LONG = estimates(2, hours=1, groups=2)
UNEVEN = (SHORT, dataclasses.replace(LONG, cold=5 * HOUR, warm=5 * HOUR))  # the long one is built by the first worker
ENDED = 2 * HOUR  # of the run, when the short one is finished and its worker terminated


def supervised(faults: Faults, **more: Any) -> tuple[Supervisor, Simulation]:
    """Carry out a run of a short and a long config; all configs must be built, by one worker each."""
    simulation = Simulation(UNEVEN, faults=faults)
    settings = {"id": "r1", "command": "", "machine_type": MACHINE, "estimates": UNEVEN, "max_workers": 2, **more}
    run = Supervisor(FleetRunConfig(**settings), executor=simulation, recorder=null_recorder())
    report = run.execute_run()
    assert {config.state for config in report.configs} == {ConfigState.DONE}
    assert not simulation.workers
    assert sorted(config for config, _ in simulation.built) == [SHORT.config, LONG.config]
    return run, simulation


def hours(simulation: Simulation) -> float:
    return (simulation.clock - simulation.began) / HOUR


def test_the_last_worker_that_hangs_is_replaced_once_a_new_one_answers() -> None:
    run, simulation = supervised(Faults(cut={ONE: ENDED}))
    assert simulation.built[-1] == (LONG.config, THREE)
    assert run.workers.losses.single == 1
    assert hours(simulation) < 2 + 0.15 + 5.2 + 0.1, "not a lease later"


def test_the_last_worker_is_waited_for_where_the_new_one_does_not_answer_either() -> None:
    run, simulation = supervised(Faults(blocked=((ENDED, ENDED + HOUR),)))
    assert [worker for _, worker in simulation.built] == [TWO, ONE]
    assert set(run.state.inventory.workers) == {ONE, TWO, THREE}, "one other is requested, no more"
    lived = sum(end - begin for name, begin, end in simulation.paid if name == THREE)
    assert 0 < lived < HOUR
    assert hours(simulation) < 5.3


class Lines(NullObserver):
    """An observer that stores the lines of configs."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def output_line_received(self, config: str, step: str, line: str) -> None:
        self.lines.append(step)


def test_a_silent_worker_is_waited_for_with_the_reason_why_the_provider_does_not_list_it() -> None:
    def lines_of(faults: Faults, ends: AbstractContextManager[object]) -> list[str]:
        observer = Lines()
        settings = {"id": "r1", "command": "", "machine_type": MACHINE, "estimates": UNEVEN, "max_workers": 2}
        simulation = Simulation(UNEVEN, faults=faults)
        run_config = FleetRunConfig(**settings)  # type: ignore[arg-type]
        with ends:
            Supervisor(run_config, executor=simulation, recorder=RunRecorder(NullStore(), observer)).execute_run()
        return [line for line in observer.lines if "not answer" in line]

    expired = lines_of(Faults(dies={ONE: ENDED}, expired=ENDED - HOUR), pytest.raises(MachinesUnknown))
    assert expired[0].startswith(f"{ONE} does not answer, and the provider does not accept the credentials since 2")
    assert "(ExpiredToken), so it is unknown whether it exists: waiting; credentials that are renewed in" in expired[0]
    assert len({line.partition(" (")[0] for line in expired}) == 1, "since the first refusal"
    (offline,) = set(lines_of(Faults(offline=((ENDED, ENDED + HOUR),)), nullcontext()))
    assert offline.startswith("the provider and the workers do not answer: waiting, ")


@pytest.mark.parametrize(
    ("faults", "more"),
    [
        (Faults(offline=((ENDED, ENDED + HOUR),)), {}),  # the provider does not answer either
        (Faults(blocked=((ENDED, ENDED + 400.0),)), {}),  # for less than three timeouts
        (Faults(blocked=((ENDED, ENDED + HOUR),)), {"max_workers": 1}),
    ],
)
def test_no_other_worker_is_requested_in_a_short_silence_without_the_provider_or_beyond_the_limit(
    faults: Faults, more: dict[str, Any]
) -> None:
    run, _ = supervised(faults, **more)
    assert THREE not in run.state.inventory.workers


def test_no_fate_ends_otherwise_or_takes_longer_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = 0.0
    for seed in range(20):
        dice = random.Random(seed)
        begin = dice.uniform(HOUR, 5 * HOUR)
        fault: dict[str, Any] = (
            {"cut": {ONE: begin}} if seed % 2 else {"blocked": ((begin, begin + dice.uniform(0, 5000)),)}
        )
        _, simulation = supervised(Faults(**fault))
        with monkeypatch.context() as patch:
            patch.setattr("kiln.fleet.unreachable.ALONE", float("inf"))
            _, before = supervised(Faults(**fault))
        assert hours(simulation) <= hours(before)
        saved += hours(before) - hours(simulation)
    assert saved > 10
