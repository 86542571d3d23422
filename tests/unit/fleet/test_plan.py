"""Which cell goes on which machine, when, and at what price."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.errors import FleetLimit, UsageError
from kiln.fleet.plan import Bounds, Overheads, Placed, arrange, numbers, plan, price
from kiln.model.fleet import Work
from tests.fleets import FLAVOUR, HOUR, works

FREE = Overheads(up=0.0, home=0.0, down=0.0)
SOME = Overheads(up=240.0, home=60.0, down=30.0)


def placed(config: str, machine: int, start: float, hours: float, *, leader: bool = True, group: str = "a") -> Placed:
    return Placed(config=config, group=group, machine=machine, start=start * HOUR, seconds=hours * HOUR, leader=leader)


def test_leaders_come_first_then_followers_on_the_machine_that_compiled() -> None:
    cells = works(6, hours=1, follower=0.25, groups=2)
    way = arrange(cells, machines=2, flavour=FLAVOUR, overheads=FREE)
    assert way.placed == (
        placed("cell00", 0, 0, 1, group="cuda0"),
        placed("cell01", 1, 0, 1, group="cuda1"),
        placed("cell02", 0, 1, 0.25, leader=False, group="cuda0"),
        placed("cell03", 1, 1, 0.25, leader=False, group="cuda1"),
        placed("cell04", 0, 1.25, 0.25, leader=False, group="cuda0"),
        placed("cell05", 1, 1.25, 0.25, leader=False, group="cuda1"),
    )
    assert (way.seconds, way.paid) == (1.5 * HOUR, (1.5 * HOUR, 1.5 * HOUR))
    assert way.cost == pytest.approx(3 * 0.8)


def test_cells_that_share_nothing_go_the_longest_first() -> None:
    hours = {"a": 5, "b": 3, "c": 3, "d": 2, "e": 2, "f": 1}
    cells = [Work(config=name, group="cpu", full=time * HOUR, follower=time * HOUR) for name, time in hours.items()]
    way = arrange(cells, machines=2, flavour=FLAVOUR, overheads=FREE)
    assert {cell.config: cell.machine for cell in way.placed} == {"a": 0, "b": 1, "c": 1, "d": 0, "e": 1, "f": 0}
    assert way.seconds == 8 * HOUR


def test_a_machine_is_paid_for_from_its_request_to_its_end_not_for_the_others() -> None:
    cells = works(3, hours=1)
    way = arrange(cells, machines=2, flavour=FLAVOUR, overheads=SOME)
    assert way.paid == (240 + 2 * HOUR + 60 + 30, 240 + HOUR + 60 + 30)
    assert way.seconds == 240 + 2 * HOUR + 60 + 30


def test_a_second_machine_repeats_a_compile_only_where_that_is_sooner() -> None:
    few, many = works(2, hours=1, follower=0.2, groups=1), works(10, hours=1, follower=0.2, groups=1)
    assert arrange(few, machines=2, flavour=FLAVOUR, overheads=SOME).machines == 2
    assert arrange(many, machines=4, flavour=FLAVOUR, overheads=SOME).seconds < 2 * HOUR
    quick = works(2, hours=1, follower=0.01, groups=1)
    assert arrange(quick, machines=2, flavour=FLAVOUR, overheads=SOME).machines == 1


def test_with_a_cache_patient_followers_wait_for_the_leader_and_run_anywhere() -> None:
    cells = works(5, hours=1, follower=0.2, groups=1)
    way = arrange(cells, machines=4, flavour=FLAVOUR, overheads=FREE, cache=FLAVOUR)
    assert [cell.start for cell in way.placed] == [0.0, HOUR, HOUR, HOUR, HOUR]
    assert way.machines == 4
    eager = arrange(cells, machines=4, flavour=FLAVOUR, overheads=FREE, cache=FLAVOUR, patient=False)
    assert [cell.start for cell in eager.placed] == [0.0, 0.0, 0.0, 0.0, HOUR]


def test_the_fastest_asks_for_no_machine_that_saves_no_time() -> None:
    made = plan({FLAVOUR: works(15)}, overheads=SOME, bounds=Bounds(machines=14), aim="fastest")
    assert made.chosen is made.fastest
    assert made.fastest.machines == 8
    assert made.cheapest.machines == 1
    assert made.cheapest.cost < made.fastest.cost


def test_the_cheapest_is_the_cheapest_that_is_in_time() -> None:
    made = plan({FLAVOUR: works(15)}, overheads=SOME, bounds=Bounds(machines=20, seconds=10 * HOUR))
    assert made.chosen is made.cheapest
    assert made.cheapest.machines == 5


def test_a_dearer_type_is_taken_where_it_is_worth_it() -> None:
    big = dataclasses.replace(FLAVOUR, type="compute-64", cores=64, hourly=1.6)
    assert plan({FLAVOUR: works(4)}, overheads=SOME, bounds=Bounds(machines=4), aim="fastest").chosen.machines == 4
    made = plan(
        {FLAVOUR: works(4), big: works(4, hours=0.9)}, overheads=SOME, bounds=Bounds(machines=4), aim="cheapest"
    )
    assert made.chosen.flavour is big


def test_limits_that_nothing_meets_are_told_with_what_would() -> None:
    with pytest.raises(FleetLimit) as beyond:
        plan({FLAVOUR: works(4)}, overheads=SOME, bounds=Bounds(machines=2, cost=1.0, seconds=HOUR))
    assert "1.00 EUR and 1.0 h" in beyond.value.what
    assert "the cheapest costs 9.6" in beyond.value.why


def test_nothing_to_build_or_nowhere_to_build_is_refused() -> None:
    with pytest.raises(UsageError):
        plan({FLAVOUR: ()}, overheads=SOME, bounds=Bounds(machines=1))
    with pytest.raises(UsageError):
        plan({FLAVOUR: works(1)}, overheads=SOME, bounds=Bounds(machines=0))


@pytest.mark.parametrize(
    ("seconds", "billed", "cost"), [(1.0, 1, 1 / 3600), (1.0, 3600, 1.0), (3600.0, 3600, 1.0), (3601.0, 3600, 2.0)]
)
def test_a_begun_step_is_paid_in_full(seconds: float, billed: float, cost: float) -> None:
    assert price(1.0, seconds, billed=billed) == pytest.approx(cost)


def test_the_numbers_of_machines_compared_are_few_and_hold_the_most() -> None:
    assert numbers(15, 60) == (1, 2, 3, 4, 5, 8, 15)
    assert numbers(15, 6) == (1, 2, 3, 4, 5, 6)
    assert len(numbers(1000, 200)) <= 17
    assert numbers(1000, 200)[-1] == 200


@given(
    st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0.05, 1.0), st.sampled_from("abc")), min_size=1, max_size=40),
    st.integers(1, 12),
    st.booleans(),
    st.booleans(),
)
def test_every_cell_is_placed_once_and_no_machine_does_two_at_a_time(
    cells: list[tuple[float, float, str]], machines: int, cache: bool, patient: bool
) -> None:
    all_works = [
        Work(config=f"{number}", group=group, full=full * HOUR, follower=full * part * HOUR)
        for number, (full, part, group) in enumerate(cells)
    ]
    way = arrange(
        all_works, machines=machines, flavour=FLAVOUR, overheads=SOME, cache=FLAVOUR if cache else None, patient=patient
    )
    assert sorted(cell.config for cell in way.placed) == sorted(work.config for work in all_works)
    assert way.machines <= machines
    ends: dict[int, float] = {}
    for cell in sorted(way.placed, key=lambda each: each.start):
        assert cell.start >= ends.get(cell.machine, SOME.up) - 1e-6
        ends[cell.machine] = cell.start + cell.seconds
    assert way.seconds >= max(cell.seconds for cell in way.placed)
