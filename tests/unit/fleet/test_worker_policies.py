"""The pool of a run: as many workers as were asked for, for as long as it compiles, whatever dies."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import ProvisionRefused, WorkersLost
from kiln.fleet.model import WorkerState
from kiln.fleet.protocol import (
    PrepareWorker,
    ProvisionWorkers,
    RenewLease,
    StartBuild,
    TearDownRun,
    TerminateWorker,
    WatchService,
)
from kiln.fleet.records import FleetLedger, RunRecorder
from kiln.fleet.run_config import FleetRunConfig, cache_worker_type, recorded_pool_type_and_size
from kiln.fleet.supervisor import Supervisor
from kiln.state.results import ConfigState
from tests.fleets import HOUR, MACHINE, Faults, Killed, NullObserver, NullStore, Simulation, estimates

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.fleet.model import FleetRun
    from kiln.state.results import MatrixReport

pytestmark = pytest.mark.usefixtures("rare_forecasts")

LARGE = dataclasses.replace(MACHINE, type="large", hourly=2.0)
SERVER, FIRST, SECOND, THIRD = "kiln-r1-cache", "kiln-r1-pool-1", "kiln-r1-pool-2", "kiln-r1-pool-3"
FOUR = estimates(4, hours=1, warm=0.2, groups=2)


def started(
    simulation: Simulation, store: FleetLedger | None = None, before: FleetRun | None = None, **more: Any
) -> Supervisor:
    defaults: dict[str, Any] = {"cache": LARGE, "pool": LARGE, "pool_workers": 2, "max_workers": 2, "startup": 240.0}
    run_config = FleetRunConfig(
        id="r1",
        command="",
        machine_type=MACHINE,
        estimates=tuple(simulation.estimates.values()),
        previous_run=before,
        **{**defaults, **more},
    )
    return Supervisor(run_config, executor=simulation, recorder=RunRecorder(store or NullStore(), NullObserver()))


def is_done(report: MatrixReport) -> bool:
    return {config.state for config in report.configs} == {ConfigState.DONE}


def commands(simulation: Simulation, kind: type) -> list[Any]:
    return [command for command in simulation.commands if isinstance(command, kind)]


def assert_nothing_left(run: Supervisor, simulation: Simulation) -> None:
    assert not simulation.workers
    assert isinstance(simulation.commands[-1], TearDownRun)
    assert {worker.record.state for worker in run.state.inventory} <= {WorkerState.TERMINATED, WorkerState.REFUSED}


def test_a_pool_is_provisioned_with_its_server_watched_leased_charged_and_torn_down() -> None:
    simulation = Simulation(FOUR, cache=True)
    run = started(simulation)
    assert is_done(run.execute_run())
    (request,) = commands(simulation, ProvisionWorkers)
    assert request.workers == (SERVER, FIRST, SECOND, "kiln-r1-1", "kiln-r1-2")
    assert request.offers[FIRST] == ("large", False, "")
    assert set(request.needs) == {"kiln-r1-1", "kiln-r1-2"}, "the pool builds no config"
    assert {command.worker for command in commands(simulation, WatchService)} == {SERVER, FIRST, SECOND}
    assert {SERVER, FIRST, SECOND} <= {command.worker for command in commands(simulation, RenewLease)}
    assert {command.cache for command in commands(simulation, StartBuild)} == {"http://cache"}
    assert {worker for _, worker in simulation.built} == {"kiln-r1-1", "kiln-r1-2"}
    cost, expected = (
        run.state.cost,
        sum(
            (end - begin) / HOUR * (0.8 if name in {"kiln-r1-1", "kiln-r1-2"} else 2.0)
            for name, begin, end in simulation.paid
        ),
    )
    assert cost is not None
    assert cost.spent == pytest.approx(expected, abs=0.5)
    assert_nothing_left(run, simulation)


def test_builds_wait_for_a_worker_of_the_pool() -> None:
    simulation = Simulation(FOUR, cache=True, faults=Faults(hiccups={FIRST: 2, SECOND: 2}))
    assert is_done(started(simulation).execute_run())
    kinds = [command for command in simulation.commands if isinstance(command, PrepareWorker | StartBuild)]
    prepared = [command.worker for command in kinds[: [isinstance(each, StartBuild) for each in kinds].index(True)]]
    assert prepared.count(FIRST) == 3


def test_a_lost_worker_of_a_pool_is_replaced_by_one_of_another_name(caplog: pytest.LogCaptureFixture) -> None:
    simulation = Simulation(FOUR, cache=True, faults=Faults(dies={SECOND: 1000.0}))
    run = started(simulation)
    assert is_done(run.execute_run())
    assert commands(simulation, ProvisionWorkers)[-1].workers == (THIRD,)
    assert THIRD in {command.worker for command in commands(simulation, WatchService)}
    assert f"{SECOND} of the pool is lost" in caplog.text
    assert "another is requested" in caplog.text
    assert sorted(config for config, _ in simulation.built) == [job.config for job in FOUR], "no build was lost"
    assert_nothing_left(run, simulation)


def test_a_worker_of_a_pool_that_is_taken_back_is_replaced_at_its_notice(caplog: pytest.LogCaptureFixture) -> None:
    simulation = Simulation(FOUR, cache=True, faults=Faults(dies={SECOND: 1000.0}, notice=True))
    run = started(simulation, replacements=0, reclaims=1)
    assert is_done(run.execute_run())
    assert commands(simulation, ProvisionWorkers)[-1].workers == (THIRD,)
    assert {name: begin for name, begin, _ in simulation.paid}[THIRD] < simulation.began + 1000.0
    assert f"the provider takes {SECOND} of the pool back in 1" in caplog.text
    assert "is lost" not in caplog.text, "the loss was announced"
    assert_nothing_left(run, simulation)


def test_a_pool_whose_workers_are_taken_back_too_often_becomes_smaller_and_ends_the_run_with_the_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = Faults(dies={FIRST: 1000.0, SECOND: 1500.0}, notice=True)
    simulation = Simulation(FOUR, cache=True, faults=faults)
    run = started(simulation, replacements=0, reclaims=0)
    with pytest.raises(WorkersLost, match="all workers of the pool were lost"):
        run.execute_run()
    assert "the pool has 1 workers" in caplog.text
    assert simulation.clock - simulation.began >= 1500.0, "it has its last worker until that is gone"
    assert_nothing_left(run, simulation)


def test_a_pool_becomes_smaller_once_no_more_are_replaced_and_ends_the_run_without_a_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    simulation = Simulation(FOUR, cache=True, faults=Faults(dies={SECOND: 1000.0}))
    run = started(simulation, replacements=0)
    assert is_done(run.execute_run())
    assert len(commands(simulation, ProvisionWorkers)) == 1
    assert "the pool has 1 workers" in caplog.text
    both = Simulation(FOUR, cache=True, faults=Faults(dies={FIRST: 1000.0, SECOND: 1500.0}))
    run = started(both, replacements=0)
    with pytest.raises(WorkersLost, match="all workers of the pool were lost"):
        run.execute_run()
    assert_nothing_left(run, both)


def test_a_pool_is_what_the_provider_gives_and_none_ends_the_run(caplog: pytest.LogCaptureFixture) -> None:
    simulation = Simulation(FOUR, cache=True, faults=Faults(refused=frozenset({SECOND})))
    run = started(simulation)
    assert is_done(run.execute_run())
    assert "the pool has 1 workers, as the provider refuses another: quota exceeded" in caplog.text
    assert_nothing_left(run, simulation)
    simulation = Simulation(FOUR, cache=True, faults=Faults(refused=frozenset({FIRST, SECOND})))
    run = started(simulation)
    with pytest.raises(ProvisionRefused, match="all workers of the pool"):
        run.execute_run()
    assert_nothing_left(run, simulation)


def test_the_loss_of_the_server_ends_the_run() -> None:
    simulation = Simulation(FOUR, cache=True, faults=Faults(dies={SERVER: 1000.0}))
    run = started(simulation)
    with pytest.raises(WorkersLost, match="the server of the pool was lost"):
        run.execute_run()
    assert_nothing_left(run, simulation)


def test_a_killed_controller_finds_its_pool_again(tmp_path: Path) -> None:
    simulation = Simulation(FOUR, cache=True, faults=Faults(killed=1000.0))
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            started(simulation, ledger).execute_run()
        before = ledger.fleet_run("r1")
        assert before is not None
        assert (recorded_pool_type_and_size(before), cache_worker_type(before)) == (("large", 2), None)
        simulation.revive()
        run = started(simulation, ledger, before)
        assert is_done(run.execute_run())
        requests = [name for command in commands(simulation, ProvisionWorkers) for name in command.workers]
        assert (requests.count(FIRST), requests.count(SECOND), THIRD in requests) == (2, 2, False)
        assert_nothing_left(run, simulation)
        after = ledger.fleet_run("r1")
        assert after is not None
        assert recorded_pool_type_and_size(after) is None


def test_a_pool_that_is_no_longer_asked_for_is_terminated(tmp_path: Path) -> None:
    simulation = Simulation(FOUR, cache=True, faults=Faults(killed=1000.0))
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            started(simulation, ledger).execute_run()
        simulation.revive()
        run = started(simulation, ledger, ledger.fleet_run("r1"), pool=None, pool_workers=0, cache=None)
        assert is_done(run.execute_run())
        assert {SERVER, FIRST, SECOND} <= {command.worker for command in commands(simulation, TerminateWorker)}
        assert_nothing_left(run, simulation)


def test_under_preemption_a_pool_is_whole_again_and_nothing_is_left() -> None:
    jobs = estimates(12, hours=3, warm=0.2, groups=3)
    for seed in range(5):
        simulation = Simulation(jobs, cache=True, faults=Faults(preemption=0.1), seed=seed)
        run = started(simulation, pool_workers=4, max_workers=6, attempts=100, replacements=1000)
        with contextlib.suppress(WorkersLost):
            assert is_done(run.execute_run())
        assert run.state.stop is None or run.state.stop.what == "the server of the pool was lost"
        assert_nothing_left(run, simulation)
