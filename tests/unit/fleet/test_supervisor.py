"""Whatever happens to machines, builds, controller or provider: every cell is accounted for, nothing is left."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from kiln.errors import (
    BuildFailed,
    CredentialsRefused,
    DiskFull,
    FleetLimit,
    HashMismatch,
    MachinesLeft,
    MachinesLost,
    MachinesRefused,
)
from kiln.fleet.mission import Mission, cache_of
from kiln.fleet.orders import Bring, Collect, Down, Prepare, Remove, Renew, Start
from kiln.fleet.supervisor import Supervisor
from kiln.ledger.fleet import FleetLedger
from kiln.model.fleet import FleetRun, JobState, MachineState
from kiln.model.run import CellState
from tests.fleets import FLAVOUR, HOUR, NEVER, Faults, Killed, Nobody, NoBook, World, works

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.fleet import Work
    from kiln.model.run import MatrixReport

FOUR = works(4, hours=1, groups=4)
ONE, TWO = "kiln-r1-1", "kiln-r1-2"


def mission(cells: tuple[Work, ...] = FOUR, **more: Any) -> Mission:
    return Mission(**{"id": "r1", "command": "", "flavour": FLAVOUR, "works": cells, "most": 2, "up": 240.0, **more})


def supervisor(world: World, **more: Any) -> Supervisor:
    wanted = mission(tuple(world.works.values()), **more)
    return Supervisor(wanted, hands=world, book=NoBook(), watcher=Nobody())


def states(report: MatrixReport) -> dict[str, CellState]:
    return {cell.config: cell.state for cell in report.cells}


def all_done(report: MatrixReport) -> bool:
    return set(states(report).values()) == {CellState.DONE}


def orders(world: World, kind: type) -> list[Any]:
    return [order for order in world.orders if isinstance(order, kind)]


def assert_nothing_left(run: Supervisor, world: World) -> None:
    """Every machine that was made is gone, in the world and in what is written down; the last order saw to that."""
    assert not world.boxes
    assert isinstance(world.orders[-1], Down)
    over = {MachineState.GONE, MachineState.REFUSED}
    assert {station.machine.state for station in run.run.yard} <= over


def test_two_machines_build_four_cells_and_are_given_back_at_once() -> None:
    world = World(FOUR)
    run = supervisor(world)
    report = run.execute()
    assert all_done(report)
    assert Counter(machine for _, machine in world.built) == {ONE: 2, TWO: 2}
    assert len(orders(world, Bring)) == 1
    assert not orders(world, Remove)
    assert report.finished is not None
    assert report.finished - report.started < 2 * HOUR + 240 + 60 + 30 + 60
    assert_nothing_left(run, world)


def test_a_machine_is_given_back_as_soon_as_nothing_waits_for_it() -> None:
    world = World(works(3, hours=1, groups=3))
    run = supervisor(world)
    assert all_done(run.execute())
    assert [order.machine for order in orders(world, Remove)] == [TWO]
    assert_nothing_left(run, world)


def test_packages_come_home_while_the_next_cell_is_built() -> None:
    world = World(FOUR)
    supervisor(world).execute()
    kinds = [type(order) for order in world.orders if isinstance(order, Start | Collect) and order.machine == ONE]
    assert kinds == [Start, Collect, Start, Collect]
    assert world.clock - world.began < 2 * HOUR + world.up + world.home + 2 * world.down + 10


def test_followers_are_quick_where_their_leader_was_built() -> None:
    world = World(works(4, hours=1, follower=0.2, groups=2))
    run = supervisor(world)
    report = run.execute()
    assert all_done(report)
    assert report.finished is not None
    assert report.finished - report.started < 1.2 * HOUR + 600
    assert [cell.leader for cell in report.cells] == [True, True, False, False]


def test_a_machine_that_dies_while_building_is_replaced_and_its_cell_built_again() -> None:
    world = World(FOUR, faults=Faults(dies={ONE: 2000.0}))
    run = supervisor(world)
    assert all_done(run.execute())
    assert run.machines.died == 1
    assert set(run.run.yard.stations) == {ONE, TWO, "kiln-r1-3"}
    assert max(run.run.yard.attempts(work.config) for work in FOUR) == 2
    assert_nothing_left(run, world)


def test_a_cell_whose_machines_all_die_is_given_up_after_so_many_attempts() -> None:
    dies = {f"kiln-r1-{number}": 240.0 + number * 1000 for number in range(1, 9)}
    world = World(works(1, hours=9), faults=Faults(dies=dies))
    run = supervisor(world, attempts=2, replacements=9)
    report = run.execute()
    assert states(report) == {"cell00": CellState.FAILED}
    assert isinstance(run.errors["cell00"], MachinesLost)
    assert "2 machines" in str(run.errors["cell00"])
    assert_nothing_left(run, world)


def test_a_run_whose_machines_all_die_ends_with_what_was_finished() -> None:
    dies = {f"kiln-r1-{number}": 240.0 + number * 1000 for number in range(1, 9)}
    world = World(FOUR, faults=Faults(dies=dies))
    run = supervisor(world, attempts=9, replacements=2)
    with pytest.raises(MachinesLost, match="died, and no more"):
        run.execute()
    assert_nothing_left(run, world)


def test_a_machine_that_cannot_be_prepared_is_replaced() -> None:
    world = World(FOUR, faults=Faults(unprepared=frozenset({TWO})))
    run = supervisor(world)
    assert all_done(run.execute())
    assert max(run.run.yard.attempts(work.config) for work in FOUR) == 1
    assert_nothing_left(run, world)


def test_a_refused_machine_leaves_the_work_to_the_others() -> None:
    world = World(FOUR, faults=Faults(refused=frozenset({TWO})))
    run = supervisor(world)
    assert all_done(run.execute())
    assert {machine for _, machine in world.built} == {ONE}
    assert len(orders(world, Bring)) == 1
    assert_nothing_left(run, world)


def test_no_machine_at_all_is_an_error_that_says_why() -> None:
    world = World(FOUR, faults=Faults(refused=frozenset({ONE, TWO})))
    run = supervisor(world)
    with pytest.raises(MachinesRefused) as refused:
        run.execute()
    assert refused.value.why == "quota exceeded"
    assert_nothing_left(run, world)


def test_wrong_credentials_end_the_run_at_once() -> None:
    world = World(FOUR, faults=Faults(credentials=True))
    run = supervisor(world)
    with pytest.raises(CredentialsRefused):
        run.execute()
    assert not orders(world, Prepare)
    assert_nothing_left(run, world)


def test_a_machine_that_is_refused_while_all_is_given_back_is_told_as_refused() -> None:
    world = World(FOUR, faults=Faults(refused=frozenset({TWO}), stopped=(5.0,)))
    run = supervisor(world)
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    machines = {station.name: (station.machine.state, station.machine.reason) for station in run.run.yard}
    assert machines == {ONE: (MachineState.GONE, ""), TWO: (MachineState.REFUSED, "quota exceeded")}
    assert_nothing_left(run, world)


def test_a_provider_that_never_knew_who_asks_has_nothing_to_give_back() -> None:
    world = World(FOUR, faults=Faults(credentials=True, stays=9))
    with pytest.raises(CredentialsRefused):
        supervisor(world).execute()
    assert len(orders(world, Down)) == 1


def test_credentials_that_are_refused_later_do_not_tell_that_an_earlier_process_made_nothing(tmp_path: Path) -> None:
    world = World(FOUR, faults=Faults(killed=1.0))
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            started(ledger, world).execute()
        world.revive()
        world.boxes.clear()
        world.faults.credentials, world._stays = True, 9
        with pytest.raises(MachinesLeft):
            started(ledger, world, ledger.fleet("r1")).execute()


def test_a_cell_that_does_not_compile_fails_alone() -> None:
    world = World(FOUR, faults=Faults(codes={"cell02": 17}))
    run = supervisor(world)
    report = run.execute()
    assert states(report) == {
        "cell00": CellState.DONE,
        "cell01": CellState.DONE,
        "cell02": CellState.FAILED,
        "cell03": CellState.DONE,
    }
    assert type(run.errors["cell02"]) is BuildFailed
    assert {order.config for order in orders(world, Collect)} == {work.config for work in FOUR}
    assert len(orders(world, Start)) == 4
    assert_nothing_left(run, world)


def test_a_full_disk_retires_the_machine_and_another_builds_the_cell() -> None:
    world = World(FOUR, faults=Faults(full=frozenset({ONE})))
    run = supervisor(world)
    assert all_done(run.execute())
    assert ONE not in {machine for _, machine in world.built}
    assert_nothing_left(run, world)


def test_a_cell_that_fills_two_disks_is_at_fault_itself() -> None:
    world = World(works(1), faults=Faults(full=frozenset({ONE, TWO, "kiln-r1-3"})))
    run = supervisor(world)
    assert states(run.execute()) == {"cell00": CellState.DISK_FULL}
    assert type(run.errors["cell00"]) is DiskFull
    assert len(orders(world, Start)) == 2
    assert_nothing_left(run, world)


def test_a_cell_whose_machine_died_before_may_still_fill_one_disk() -> None:
    world = World(works(1), faults=Faults(dies={ONE: 2000.0}, full=frozenset({TWO})))
    run = supervisor(world)
    assert all_done(run.execute())
    assert [machine for _, machine in world.built] == ["kiln-r1-3"]
    assert_nothing_left(run, world)


def test_a_full_disk_here_is_waited_out_with_no_machine_given_up_and_nothing_built_twice() -> None:
    world = World(FOUR, faults=Faults(no_room=(1000.0, 240 + 1.5 * HOUR)))
    run = supervisor(world, attempts=1, replacements=0)
    assert all_done(run.execute())
    assert len(world.built) == len(FOUR)
    assert {machine for _, machine in world.built} == {ONE, TWO}
    assert_nothing_left(run, world)


def test_a_disk_that_stays_full_ends_the_run_as_that_when_a_lease_is_over() -> None:
    world = World(FOUR, faults=Faults(no_room=(1000.0, NEVER)))
    run = supervisor(world)
    with pytest.raises(DiskFull, match="found no room") as full:
        run.execute()
    assert "60 min" in full.value.why
    assert world.clock - world.began < 240 + 2 * HOUR + 120
    assert CellState.RUNNING not in states(run.run.report()).values()
    assert_nothing_left(run, world)


def test_ctrl_c_does_not_wait_for_what_finds_no_room() -> None:
    world = World(FOUR, faults=Faults(no_room=(1000.0, NEVER), stopped=(240 + HOUR + 60,)))
    run = supervisor(world)
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    assert world.clock - world.began < 240 + HOUR + 60 + 2 * world.down
    assert_nothing_left(run, world)


@pytest.mark.parametrize(("times", "state"), [(1, CellState.DONE), (2, CellState.DONE), (3, CellState.FAILED)])
def test_what_comes_home_broken_is_sent_again_and_then_given_up(times: int, state: CellState) -> None:
    world = World(FOUR, faults=Faults(corrupt={"cell01": times}))
    run = supervisor(world)
    found = states(run.execute())
    assert found.pop("cell01") is state
    assert set(found.values()) == {CellState.DONE}
    assert {type(error) for error in run.errors.values()} == ({HashMismatch} if state is CellState.FAILED else set())
    assert_nothing_left(run, world)


def test_a_machine_that_dies_before_its_packages_are_home_costs_another_build() -> None:
    world = World(works(1, hours=1), faults=Faults(dies={ONE: 240 + HOUR + 10}))
    run = supervisor(world)
    assert all_done(run.execute())
    assert [machine for _, machine in world.built] == [ONE, TWO]
    assert_nothing_left(run, world)


@pytest.mark.parametrize("moment", [1.0, 130.0, 1000.0, 240 + HOUR + 30, 2 * HOUR])
def test_ctrl_c_at_any_moment_gives_all_back_and_keeps_what_is_finished(moment: float) -> None:
    world = World(FOUR, faults=Faults(stopped=(moment, moment + 5, moment + 20)))
    run = supervisor(world)
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    assert CellState.RUNNING not in states(run.run.report()).values()
    assert sum(cell.state is CellState.DONE for cell in run.run.report().cells) <= len(world.built)
    assert_nothing_left(run, world)


def test_ctrl_c_waits_for_what_is_on_its_way_home() -> None:
    world = World(FOUR, faults=Faults(stopped=(240 + HOUR + 30,)))
    run = supervisor(world)
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    assert [cell.state for cell in run.run.report().cells if cell.started] == [
        CellState.DONE,
        CellState.DONE,
        CellState.INTERRUPTED,
        CellState.INTERRUPTED,
    ]


def test_the_time_limit_is_kept_with_the_tear_down_in_it() -> None:
    world = World(FOUR)
    run = supervisor(world, limit=1.5 * HOUR)
    with pytest.raises(FleetLimit, match=r"1\.50 h"):
        run.execute()
    assert world.clock - world.began <= 1.5 * HOUR
    assert list(states(run.run.report()).values()).count(CellState.DONE) == 2
    assert_nothing_left(run, world)


def test_the_spending_limit_is_kept_to_the_last_machine() -> None:
    world = World(FOUR)
    run = supervisor(world, budget=2.0)
    with pytest.raises(FleetLimit, match=r"2\.00 EUR"):
        run.execute()
    paid = sum(end - begin for _, begin, end in world.paid) / HOUR * FLAVOUR.hourly
    assert 1.9 < paid <= 2.0
    assert_nothing_left(run, world)


def test_leases_are_renewed_in_time_and_end_without_a_controller() -> None:
    world = World(works(1, hours=9))
    run = supervisor(world, lease=HOUR)
    assert all_done(run.execute())
    assert len(orders(world, Renew)) >= 4 * 9
    assert run.machines.died == 0


def test_a_tear_down_that_fails_is_tried_again_and_then_told() -> None:
    world = World(FOUR, faults=Faults(stays=2))
    run = supervisor(world)
    assert all_done(run.execute())
    assert_nothing_left(run, world)
    world = World(FOUR, faults=Faults(stays=3))
    with pytest.raises(MachinesLeft) as left:
        supervisor(world).execute()
    assert "kiln fleet down r1" in left.value.hint
    assert left.value.why == "the provider does not answer"


def test_a_cache_machine_is_up_before_the_first_build_and_its_loss_is_borne() -> None:
    cells = works(4, hours=1, follower=0.2, groups=2)
    for dies in ({}, {"kiln-r1-cache": 60.0}):
        world = World(cells, faults=Faults(dies=dies), cache=not dies)
        run = supervisor(world, cache=dataclasses.replace(FLAVOUR, type="small", hourly=0.1))
        assert all_done(run.execute())
        assert {order.cache for order in orders(world, Start)} == ({""} if dies else {"http://cache"})
        assert_nothing_left(run, world)


SMALL = dataclasses.replace(FLAVOUR, type="small", hourly=0.1)


def test_a_cache_machine_that_dies_while_cells_are_built_is_given_back_and_the_run_goes_on_without() -> None:
    cells = works(8, hours=1, follower=0.2, groups=2)
    world = World(cells, faults=Faults(dies={"kiln-r1-cache": 2000.0}), cache=True)
    run = supervisor(world, cache=SMALL)
    assert all_done(run.execute())
    caches = [order.cache for order in orders(world, Start)]
    assert caches == ["http://cache"] * 2 + [""] * 6
    assert (run.machines.died, run.machines.most) == (0, 2)
    assert "no answer" in run.run.yard.stations["kiln-r1-cache"].machine.reason
    assert_nothing_left(run, world)


def test_a_refused_cache_machine_is_done_without() -> None:
    world = World(FOUR, faults=Faults(refused=frozenset({"kiln-r1-cache"})))
    run = supervisor(world, cache=SMALL)
    assert all_done(run.execute())
    assert {order.cache for order in orders(world, Start)} == {""}
    assert run.machines.most == 2
    assert_nothing_left(run, world)


def test_a_cache_machine_is_leased_paid_for_and_given_back_like_others() -> None:
    world = World(works(2, hours=3), cache=True)
    run = supervisor(world, cache=SMALL)
    assert all_done(run.execute())
    assert "kiln-r1-cache" in {order.machine for order in orders(world, Renew)}
    cache = run.run.yard.stations["kiln-r1-cache"].machine
    assert cache.gone is not None
    assert run.run.mission.cost(cache, world.clock) == pytest.approx(0.1 * (cache.gone - cache.asked) / HOUR, abs=0.01)
    assert_nothing_left(run, world)


def test_a_killed_controller_finds_its_cache_machine_again(tmp_path: Path) -> None:
    world = World(FOUR, faults=Faults(killed=1000.0), cache=True)
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            started(ledger, world, cache=SMALL).execute()
        before = ledger.fleet("r1")
        assert before is not None
        assert cache_of(before) == "small"
        world.revive()
        run = started(ledger, world, before, cache=SMALL)
        assert all_done(run.execute())
        assert {order.cache for order in orders(world, Start)} == {"http://cache"}
        assert sum("kiln-r1-cache" in order.machines for order in orders(world, Bring)) == 2
        assert_nothing_left(run, world)
        after = ledger.fleet("r1")
        assert after is not None
        assert cache_of(after) is None


def test_a_cache_machine_that_is_not_wanted_any_more_is_given_back(tmp_path: Path) -> None:
    world = World(FOUR, faults=Faults(killed=1000.0), cache=True)
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            started(ledger, world, cache=SMALL).execute()
        world.revive()
        run = started(ledger, world, ledger.fleet("r1"))
        assert all_done(run.execute())
        assert orders(world, Remove)[0].machine == "kiln-r1-cache"
        assert_nothing_left(run, world)


# A controller that is killed


def started(ledger: FleetLedger, world: World, before: FleetRun | None = None, **more: Any) -> Supervisor:
    found = () if before is None else (ledger.report(before.number) or pytest.fail("no report")).cells
    done = tuple(cell for cell in found if cell.state is CellState.DONE)
    left = tuple(work for work in world.works.values() if work.config not in {cell.config for cell in done})
    return Supervisor(mission(left, found=done, before=before, **more), hands=world, book=ledger, watcher=Nobody())


@pytest.mark.parametrize(
    "moment",
    [0.0, 1.0, 119.0, 121.0, 239.0, 241.0, 1000.0, 240 + HOUR, 240 + HOUR + 30, 240 + HOUR + 70, 2 * HOUR + 250],
)
def test_a_killed_controller_is_succeeded_with_nothing_built_twice_and_nothing_left(
    moment: float, tmp_path: Path
) -> None:
    world = World(FOUR, faults=Faults(killed=moment))
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            started(ledger, world).execute()
        before = ledger.fleet("r1")
        assert before is not None
        assert before.finished is None
        assert set(world.boxes) <= {machine.name for machine in before.machines}
        world.revive()
        world.clock += 300
        run = started(ledger, world, before)
        assert all_done(run.execute())
        assert len(set(world.built)) == len(FOUR)
        assert {machine for _, machine in world.built} == {ONE, TWO}
        assert_nothing_left(run, world)
        after = ledger.fleet("r1")
        assert after is not None
        assert after.finished is not None
        assert {job.state for job in {job.config: job for job in after.jobs}.values()} == {JobState.HOME}


def test_machines_whose_lease_ran_out_meanwhile_are_made_anew(tmp_path: Path) -> None:
    world = World(FOUR, faults=Faults(killed=1000.0))
    with FleetLedger(tmp_path / "ledger.sqlite") as ledger:
        with pytest.raises(Killed):
            started(ledger, world).execute()
        world.revive()
        world.clock += 2 * HOUR
        run = started(ledger, world, ledger.fleet("r1"))
        assert all_done(run.execute())
        assert len(world.built) == len(FOUR)
        assert_nothing_left(run, world)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("cache", [False, True])
def test_under_preemption_every_cell_is_built_once_it_can_be_and_nothing_is_left(seed: int, cache: bool) -> None:
    cells = works(15, follower=0.2 if cache else 1.0)
    world = World(cells, faults=Faults(preemption=0.2), seed=seed, cache=cache)
    run = supervisor(world, most=5, attempts=99, replacements=999, cache=FLAVOUR if cache else None)
    assert all_done(run.execute())
    assert {config for config, _ in world.built} == {work.config for work in cells}
    assert_nothing_left(run, world)
