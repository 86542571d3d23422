"""Silent workers, and what the provider lists: who is replaced, waited for, ended or left alone."""

from __future__ import annotations

import dataclasses
import random
import re
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import MachinesUnknown
from kiln.fleet.model import WorkerState
from kiln.fleet.protocol import ListedMachine, ProbeWorkers, TerminateWorker, WorkersProbed
from kiln.fleet.records import FleetLedger, RunRecorder
from kiln.fleet.supervisor import Supervisor
from kiln.fleet.unreachable import AFTER_REQUEST, INTERVAL, SETTLING, SILENCE
from kiln.state.results import ConfigState
from tests.fleets import (
    HOUR,
    MACHINE,
    NEVER,
    POLL,
    Faults,
    Killed,
    NullObserver,
    NullStore,
    Simulation,
    estimates,
    null_recorder,
    run_config,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from kiln.state.results import ConfigRun

pytestmark = pytest.mark.usefixtures("rare_forecasts")
ONE, TWO, THREE = "kiln-r1-1", "kiln-r1-2", "kiln-r1-3"
SHORT, LONG = estimates(2, hours=1, groups=2)
UNEVEN = (SHORT, dataclasses.replace(LONG, cold=5 * HOUR, warm=5 * HOUR))  # the long one is built by the first worker
ENDED = 2 * HOUR  # of the run, when the short one is finished and its worker terminated


def supervised(faults: Faults, **more: Any) -> tuple[Supervisor, Simulation]:
    """Carry out a run of a short and a long config; all configs must be built, by one worker each."""
    simulation = Simulation(UNEVEN, faults=faults)
    run = Supervisor(run_config(UNEVEN, **more), executor=simulation, recorder=null_recorder())
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
        simulation = Simulation(UNEVEN, faults=faults)
        recorder = RunRecorder(NullStore(), observer)
        with ends:
            Supervisor(run_config(UNEVEN), executor=simulation, recorder=recorder).execute_run()
        return [line for line in observer.lines if "not answer" in line]

    expired = lines_of(Faults(dies={ONE: ENDED}, expired=ENDED - HOUR), pytest.raises(MachinesUnknown))
    assert expired[0].startswith(f"{ONE} does not answer, and the provider does not accept the credentials since 2")
    assert "(ExpiredToken), so it is unknown whether it exists: waiting; credentials that are renewed in" in expired[0]
    assert len({line.partition(" (")[0] for line in expired}) == 1, "since the first refusal"
    (offline,) = set(lines_of(Faults(offline=((ENDED, ENDED + HOUR),)), nullcontext()))
    assert offline.startswith("the provider and the workers do not answer: waiting, ")


def test_a_config_has_since_when_its_worker_is_silent_until_that_answers() -> None:
    reasons: list[str] = []

    class Reasons(Lines):
        def config_changed(self, config: ConfigRun) -> None:
            if config.state is ConfigState.RUNNING and config.reason not in reasons[-1:]:
                reasons.append(config.reason)

    recorder = RunRecorder(NullStore(), Reasons())
    simulation = Simulation(UNEVEN, faults=Faults(blocked=((HOUR, HOUR + 400.0),)))
    Supervisor(run_config(UNEVEN), executor=simulation, recorder=recorder).execute_run()
    silent = [reason for reason in reasons if reason]
    assert all(re.fullmatch(r"kiln-r1-\d has not answered since \d\d:\d\d:\d\d", reason) for reason in silent)
    assert {reason.partition(" ")[0] for reason in silent} == {ONE, TWO}
    assert reasons[-1] == ""


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


FOUR = estimates(4, hours=1, groups=4)
ONE, TWO, THREE, FOURTH = (f"kiln-r1-{number}" for number in (1, 2, 3, 4))
CLOUD = dataclasses.replace(MACHINE, provider="openstack")


def supervisor(simulation: Simulation, *, store: FleetLedger | None = None, **more: Any) -> Supervisor:
    config = run_config(FOUR, **{"machine_type": CLOUD, **more})
    return Supervisor(config, executor=simulation, recorder=RunRecorder(store or NullStore(), NullObserver()))


def listed_run(faults: Faults, **more: Any) -> tuple[Supervisor, Simulation]:
    """Carry out a run, which builds all configs and leaves nothing."""
    simulation = Simulation(FOUR, faults=faults)
    run = supervisor(simulation, **more)
    report = run.execute_run()
    assert {config.state for config in report.configs} == {ConfigState.DONE}
    assert not simulation.workers
    over = {WorkerState.TERMINATED, WorkerState.REFUSED}
    assert {worker.record.state for worker in run.state.inventory} <= over
    return run, simulation


def paid(simulation: Simulation, name: str) -> list[tuple[float, float]]:
    """Return from when to when the machines of a name were charged for, in seconds of the run."""
    return [(begin - simulation.began, end - simulation.began) for each, begin, end in simulation.paid if each == name]


def probes(simulation: Simulation) -> list[tuple[str, ...]]:
    return [command.workers for command in simulation.commands if isinstance(command, ProbeWorkers)]


@pytest.mark.parametrize("provider", ["local", "openstack"])
@pytest.mark.parametrize("faults", [Faults(shut_off={ONE: 1000.0}), Faults(dies={ONE: 1000.0})])
def test_a_worker_that_has_stopped_is_replaced_at_once(provider: str, faults: Faults) -> None:
    run, simulation = listed_run(faults, machine_type=dataclasses.replace(MACHINE, provider=provider))
    (_, end), (begin, _) = (*paid(simulation, ONE), *paid(simulation, THREE))
    assert begin < 1000 + POLL + SILENCE + 20, "not after three minutes of silence"
    assert end <= begin + simulation.down + 5
    record = run.state.inventory.workers[ONE].record
    assert record.reason == f"its provider {'shows it as stopped' if faults.shut_off else 'does not list it'}"
    assert (run.workers.losses.single, run.workers.losses.joint) == (1, 0)


def test_a_worker_that_answers_is_kept_whatever_the_list_says() -> None:
    run, simulation = listed_run(Faults(unlisted={TWO: (0.0, NEVER)}))
    assert {worker.name for worker in run.state.inventory} == {ONE, TWO}
    assert run.workers.losses.single == 0
    assert (ONE, TWO) in probes(simulation)


def test_a_new_worker_that_is_listed_late_is_not_even_doubted() -> None:
    late = dict.fromkeys((ONE, TWO), (0.0, 180.0 + SETTLING))  # they exist after two minutes
    run, simulation = listed_run(Faults(unlisted=late))
    assert {worker.name for worker in run.state.inventory} == {ONE, TWO}
    assert set(probes(simulation)) == {()}


def test_a_silent_worker_that_one_list_lacks_is_waited_for() -> None:
    """It is lost when the next one lacks it, too."""
    run, simulation = listed_run(Faults(cut={ONE: 1000.0}, unlisted={ONE: (1000.0, 1000.0 + SILENCE + 7)}))
    assert probes(simulation).count((ONE, TWO)) == 2, "the first after the list, the other after three minutes"
    assert run.state.inventory.workers[ONE].record.reason.startswith("no answer for 18")


def test_a_machine_that_was_created_twice_is_ended_by_its_id_and_counts_as_cost() -> None:
    run, simulation = listed_run(Faults(doubled=frozenset({ONE})))
    (span,) = paid(simulation, f"{ONE}#2")
    assert span[1] < 120 + AFTER_REQUEST + 60, "it is found soon after the request"
    ends = [command for command in simulation.commands if isinstance(command, TerminateWorker)]
    assert [(end.worker, bool(end.id)) for end in ends] == [("kiln-r1-surplus-1", True)]
    assert {worker for _, worker in simulation.built} == {ONE, TWO}
    records = {worker.name: worker.record for worker in run.state.inventory}
    assert set(records) == {ONE, TWO, "kiln-r1-surplus-1"}
    surplus = records["kiln-r1-surplus-1"]
    assert (surplus.id, surplus.type, surplus.reason) == (ends[0].id, "compute-16", "it exists twice")
    cost = sum(end - begin for _, begin, end in simulation.paid) / HOUR * MACHINE.hourly
    assert run.state.inventory.total_cost_until(simulation.clock) == pytest.approx(cost, abs=0.001)
    assert run.workers.losses.single == 0


def test_a_second_machine_is_ended_though_only_that_one_is_listed_once_the_first_answers() -> None:
    run, simulation = listed_run(Faults(doubled=frozenset({ONE}), unlisted={ONE: (0.0, NEVER)}))
    (span,) = paid(simulation, f"{ONE}#2")
    assert span[1] < 120 + SETTLING + INTERVAL + 60
    assert {worker for _, worker in simulation.built} == {ONE, TWO}
    assert run.workers.losses.single == 0


def test_a_machine_of_an_unknown_name_is_ended_and_its_name_is_given_to_no_worker() -> None:
    run, simulation = listed_run(Faults(strays={THREE: 1000.0, "made-by-hand": 1000.0}, dies={ONE: 3000.0}))
    for name in (THREE, "made-by-hand"):
        (span,) = paid(simulation, f"{name}#2")
        assert span[1] < 1000 + INTERVAL + simulation.down + 10
    workers = run.state.inventory.workers
    assert set(workers) == {ONE, TWO, THREE, FOURTH, "kiln-r1-surplus-1"}
    assert {worker for _, worker in simulation.built} == {TWO, FOURTH}
    cost = sum(end - begin for _, begin, end in simulation.paid) / HOUR * MACHINE.hourly
    assert run.state.inventory.total_cost_until(simulation.clock) == pytest.approx(cost, rel=0.02)


def listed(name: str, identity: str = "i-1", *, owner: str = "r1", ended: bool = False) -> ListedMachine:
    return ListedMachine(name=name, owner=owner, id=identity, ended=ended)


@pytest.mark.parametrize(
    ("machines", "ended", "missing"),
    [
        pytest.param([listed(ONE)], [], "", id="undisturbed"),
        pytest.param([], [], "does not list it", id="preempted"),
        pytest.param([listed(ONE, "i-0")], [], "does not list it", id="another machine of the name"),
        pytest.param([listed(ONE, ended=True)], [], "shows it as stopped", id="SHUTOFF"),
        pytest.param([listed(ONE, "i-0", ended=True), listed(ONE)], ["i-0"], "", id="one of before has ended"),
        pytest.param([listed(ONE, ended=True), listed(ONE, "i-2")], [], "shows it as stopped", id="stopped, and new"),
        pytest.param([listed(ONE, "i-0"), listed(ONE)], ["i-0"], "", id="twice, the unknown one listed first"),
        pytest.param([listed(ONE, owner="r2")], [], "does not list it", id="foreign"),
        pytest.param([listed(ONE), listed(TWO, "i-2", owner="r2", ended=True)], [], "", id="foreign, stopped"),
        pytest.param([listed(ONE), listed(TWO, "i-2", owner="")], ["i-2"], "", id="of an older kiln"),
    ],
)
def test_a_list_is_compared_with_the_workers(machines: list[ListedMachine], ended: list[str], missing: str) -> None:
    simulation = Simulation(FOUR)
    run = supervisor(simulation)
    offer = run.state.run_config.all_offers[0]
    worker = run.state.inventory.add_requested_worker(ONE, offer, now=simulation.clock - HOUR)
    run.state.inventory.update_worker(worker, state=WorkerState.READY, id="i-1")
    worker.exists_since = simulation.clock - HOUR
    run.silence.audit.apply_machine_list(WorkersProbed(answers=frozenset(), machines=tuple(machines)), is_probe=False)
    commands = [command for command in simulation.commands if isinstance(command, TerminateWorker)]
    assert [command.id or run.state.inventory.workers[command.worker].record.id for command in commands] == ended
    assert run.silence.audit.doubtful == ({ONE: f"its provider {missing}"} if missing else {})


def test_a_machine_is_read_from_the_answer_of_the_listing() -> None:
    row = {"name": "a", "owner": "r1", "id": "i-1", "type": "compute-8", "ended": False, "expires": 1790000000}
    expected = ListedMachine(name="a", owner="r1", id="i-1", type="compute-8", expires=1790000000.0)
    assert ListedMachine.from_row({**row, "state": "running", "address": "192.0.2.1"}) == expected
    assert ListedMachine.from_row({"name": "a", "ended": True}) == ListedMachine(name="a", owner="", ended=True)
    with pytest.raises(TypeError):
        ListedMachine.from_row("a")  # type: ignore[arg-type] # from JSON


def test_machines_of_other_owners_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(FOUR)
    listed = simulation._listed
    others = tuple(
        ListedMachine(name=name, owner="another", id=f"other-{name}", ended=ended)
        for name, ended in ((ONE, False), (THREE, False), (FOURTH, True))
    )
    monkeypatch.setattr(simulation, "_listed", lambda: (*others, *listed()))
    run = supervisor(simulation)
    run.execute_run()
    assert len(probes(simulation)) > 3
    assert not [command for command in simulation.commands if isinstance(command, TerminateWorker)]
    assert {worker.name for worker in run.state.inventory} == {ONE, TWO}


def test_machines_that_are_being_requested_or_terminated_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache and workers with a request under way are known; so are those whose end was requested."""
    small = dataclasses.replace(CLOUD, type="small")
    simulation = Simulation(FOUR, faults=Faults(doubled=frozenset({ONE})), up=900.0, down=700.0, cache=True)
    run = supervisor(simulation, cache=small, unreachable_timeout=1000.0)
    run.silence.audit.schedule_listing()
    run.execute_run()
    ends = [command for command in simulation.commands if isinstance(command, TerminateWorker)]
    assert [end.worker for end in ends if end.id] == ["kiln-r1-surplus-1"], "once, though it takes two lists to end"
    assert not [end for end in ends if not end.id and end.worker not in {ONE, TWO}]
    first = next(number for number, command in enumerate(simulation.commands) if isinstance(command, ProbeWorkers))
    assert first < simulation.commands.index(ends[0])


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"machine_type": MACHINE}, 0),
        ({"machine_type": dataclasses.replace(MACHINE, provider="static")}, 0),
        ({"machine_type": dataclasses.replace(MACHINE, provider="slurm"), "is_scheduled": True}, 0),
        ({"machine_type": CLOUD}, 2 * HOUR / INTERVAL + 2),
        ({"machine_type": dataclasses.replace(MACHINE, provider="aws")}, 2 * HOUR / INTERVAL + 2),
    ],
)
def test_an_undisturbed_run_lists_the_machines_at_intervals_and_only_where_they_cost_money(
    more: dict[str, Any], expected: float
) -> None:
    _, simulation = listed_run(Faults(), **more)
    assert set(probes(simulation)) <= {()}, "no worker is contacted"
    assert expected - 2 <= len(probes(simulation)) <= expected + 1


def test_a_provider_that_cannot_be_asked_ends_nothing() -> None:
    run, simulation = listed_run(Faults(offline=((900.0, 3000.0),)))
    assert {worker.name for worker in run.state.inventory} == {ONE, TWO}
    assert len(probes(simulation)) < 100


def fate(seed: int) -> tuple[Faults, int]:
    """Return random faults, and how many workers die by them."""
    dice = random.Random(seed)
    workers = (ONE, TWO, THREE)

    def some(chance: float) -> list[str]:
        return [name for name in workers if dice.random() < chance]

    ends = {name: dice.uniform(300, 2 * HOUR) for name in some(0.4) if name != THREE}
    shut_off = {name: second for name, second in ends.items() if dice.random() < 0.5}
    begins = {name: dice.uniform(0, HOUR) for name in some(0.5)}
    faults = Faults(
        dies={name: second for name, second in ends.items() if name not in shut_off},
        shut_off=shut_off,
        unlisted={name: (begin, begin + dice.choice((20.0, 400.0, NEVER))) for name, begin in begins.items()},
        doubled=frozenset(some(0.4)),
        strays={f"kiln-r1-{number}": dice.uniform(0, 2 * HOUR) for number in (3, 7) if dice.random() < 0.5},
        killed=dice.choice((NEVER, dice.uniform(0, 2 * HOUR))),
    )
    return faults, len(ends)


@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in (0, 10, 20)])
def test_no_fate_loses_a_healthy_worker_or_leaves_a_machine_and_the_cost_is_right(
    seeds: Sequence[int], tmp_path: Path
) -> None:
    for seed in seeds:
        faults, deaths = fate(seed)
        simulation = Simulation(FOUR, faults=faults)
        with FleetLedger(tmp_path / f"{seed}.sqlite") as ledger:
            run = supervisor(simulation, store=ledger)
            try:
                report = run.execute_run()
            except Killed:
                simulation.revive()
                (previous,) = ledger.fleet_runs()
                run = supervisor(simulation, store=ledger, previous_run=previous)
                report = run.execute_run()
        assert {config.state for config in report.configs} == {ConfigState.DONE}, seed
        assert not simulation.workers, seed
        assert run.workers.losses.single + run.workers.losses.joint <= deaths, seed
        machines = [end - begin for _, begin, end in simulation.paid]
        spent = run.state.inventory.total_cost_until(simulation.clock) / MACHINE.hourly * HOUR
        assert spent == pytest.approx(sum(machines), abs=0.08 * HOUR), seed
        surplus = [end - begin for name, begin, end in simulation.paid if name.endswith("#2")]
        assert max(surplus, default=0.0) <= INTERVAL + SETTLING + 200.0, seed


def test_a_controller_that_was_killed_ends_a_second_machine_by_its_id_when_it_resumes(tmp_path: Path) -> None:
    simulation = Simulation(FOUR, faults=Faults(doubled=frozenset({ONE}), killed=200.0))  # its end is under way then
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            supervisor(simulation, store=ledger).execute_run()
        simulation.revive()
        before = len(simulation.commands)
        (previous,) = ledger.fleet_runs()
        assert {worker.name: worker.state for worker in previous.workers}["kiln-r1-surplus-1"] is WorkerState.LOST
        supervisor(simulation, store=ledger, previous_run=previous).execute_run()
    ends = [command for command in simulation.commands[before:] if isinstance(command, TerminateWorker)]
    assert [(end.worker, bool(end.id)) for end in ends] == [("kiln-r1-surplus-1", True)]
    (span,) = paid(simulation, f"{ONE}#2")
    assert span[1] < 300
