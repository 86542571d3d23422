"""Which config goes on which machine, when, at what price, and within which quotas."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.base.errors import FleetLimit, UsageError
from kiln.fleet.ansible import aws_quotas, openstack_account
from kiln.fleet.plan import plan as plan_plan
from kiln.fleet.plan.output import plan_as_json, plan_as_text
from kiln.fleet.plan.plan import (
    Assumptions,
    FleetLimits,
    FleetPlan,
    Quota,
    WorkerTestPlan,
    plan_fleet,
    schedule_builds,
    worker_cost,
)
from kiln.fleet.plan.run import stated_durations
from kiln.fleet.worker_policies import ON_DEMAND, offers_in_request_order
from kiln.recipe import feedstock as recipe_feedstock
from kiln.run.simulation import DEFAULT, STATED, Placement
from kiln.state.results import JobEstimate, JobSize
from tests.fleets import HOUR, MACHINE, assumed_overheads, estimates, lower_bound

FREE = assumed_overheads(startup=0.0, collect=0.0, teardown=0.0)
SOME = assumed_overheads(startup=240.0, collect=60.0, teardown=30.0)


def placements(
    config: str, worker: int, start: float, hours: float, *, cold: bool = True, group: str = "a"
) -> Placement:
    return Placement(config=config, group=group, worker=worker, start=start * HOUR, seconds=hours * HOUR, cold=cold)


def test_leaders_come_first_then_followers_on_the_machine_that_compiled() -> None:
    configs = estimates(6, hours=1, warm=0.25, groups=2)
    way = schedule_builds(configs, types=[MACHINE] * 2, assumptions=FREE)
    assert way.placements == (
        placements("config00", 0, 0, 1, group="cuda0"),
        placements("config01", 1, 0, 1, group="cuda1"),
        placements("config02", 0, 1, 0.25, cold=False, group="cuda0"),
        placements("config03", 1, 1, 0.25, cold=False, group="cuda1"),
        placements("config04", 0, 1.25, 0.25, cold=False, group="cuda0"),
        placements("config05", 1, 1.25, 0.25, cold=False, group="cuda1"),
    )
    assert (way.seconds, way.worker_seconds) == (1.5 * HOUR, (1.5 * HOUR, 1.5 * HOUR))
    assert way.cost == pytest.approx(3 * 0.8)


SMALL = dataclasses.replace(MACHINE, type="compute-8", name="made-up.8", cores=8, hourly=0.4, spot_hourly=None)


def test_configs_that_share_nothing_go_the_longest_first() -> None:
    hours = {"a": 5, "b": 3, "c": 3, "d": 2, "e": 2, "f": 1}
    configs = [
        JobEstimate(config=name, group="cpu", cold=time * HOUR, warm=time * HOUR) for name, time in hours.items()
    ]
    way = schedule_builds(configs, types=[MACHINE] * 2, assumptions=FREE)
    assert {config.config: config.worker for config in way.placements} == {
        "a": 0,
        "b": 1,
        "c": 1,
        "d": 0,
        "e": 1,
        "f": 0,
    }
    assert way.seconds == 8 * HOUR


def test_a_machine_is_paid_for_from_its_request_to_its_end_not_for_the_others() -> None:
    configs = estimates(3, hours=1)
    way = schedule_builds(configs, types=[MACHINE] * 2, assumptions=SOME)
    assert way.worker_seconds == (240 + 2 * HOUR + 60 + 30, 240 + HOUR + 60 + 30)
    assert way.seconds == 240 + 2 * HOUR + 60 + 30


def test_a_second_machine_repeats_a_compile_only_where_that_is_sooner() -> None:
    few, many = estimates(2, hours=1, warm=0.2, groups=1), estimates(10, hours=1, warm=0.2, groups=1)
    assert schedule_builds(few, types=[MACHINE] * 2, assumptions=SOME).worker_count == 2
    assert schedule_builds(many, types=[MACHINE] * 4, assumptions=SOME).seconds < 2 * HOUR
    quick = estimates(2, hours=1, warm=0.01, groups=1)
    assert schedule_builds(quick, types=[MACHINE] * 2, assumptions=SOME).worker_count == 1


def test_with_a_cache_patient_followers_wait_for_the_leader_and_run_anywhere() -> None:
    configs = estimates(5, hours=1, warm=0.2, groups=1)
    way = schedule_builds(configs, types=[MACHINE] * 4, assumptions=FREE, cache=MACHINE)
    assert [config.start for config in way.placements] == [0.0, HOUR, HOUR, HOUR, HOUR]
    assert way.worker_count == 4
    eager = schedule_builds(configs, types=[MACHINE] * 4, assumptions=FREE, cache=MACHINE, wait_for_cold=False)
    assert [config.start for config in eager.placements] == [0.0, 0.0, 0.0, 0.0, HOUR]


def test_the_fastest_asks_for_no_machine_that_saves_no_time() -> None:
    made = plan_fleet({MACHINE: estimates(15)}, assumptions=SOME, bounds=FleetLimits(workers=14), optimize="time")
    assert made.selection is made.fastest
    assert made.fastest.worker_count == 8
    assert made.cheapest.worker_count == 1
    assert made.cheapest.cost < made.fastest.cost


def test_the_cheapest_is_the_cheapest_that_is_in_time() -> None:
    bounds = FleetLimits(workers=20, seconds=10 * HOUR)
    made = plan_fleet({MACHINE: estimates(15)}, assumptions=SOME, bounds=bounds, optimize="cost")
    assert made.selection is made.cheapest
    assert made.cheapest.worker_count == 5


def test_the_front_has_what_nothing_beats_in_time_and_cost_and_the_knee_is_chosen() -> None:
    kinds = [
        dataclasses.replace(MACHINE, type=f"compute-{cores}", cores=cores, hourly=hourly)
        for cores, hourly in ((8, 0.4), (16, 0.8), (32, 1.7), (64, 3.6), (96, 9.0))
    ]
    jobs = {kind: estimates(4, hours=16 / kind.cores) for kind in kinds}
    made = plan_fleet(jobs, assumptions=SOME, bounds=FleetLimits(workers=4))
    points = [(way.seconds, way.cost) for way in made.front]
    assert points == sorted(points)
    assert [cost for _, cost in points] == sorted((cost for _, cost in points), reverse=True)
    assert (made.fastest, made.cheapest) == (made.front[0], made.front[-1])
    assert len(made.front) > 3
    assert made.selection not in {made.fastest, made.cheapest}
    for optimize, way in (("time", made.fastest), ("cost", made.cheapest)):
        again = plan_fleet(jobs, assumptions=SOME, bounds=FleetLimits(workers=4), optimize=optimize)
        assert (again.selection.seconds, again.selection.cost) == (way.seconds, way.cost)
    slowest = FleetLimits(workers=4, seconds=made.selection.seconds - 1)
    assert plan_fleet(jobs, assumptions=SOME, bounds=slowest).cheapest.cost > made.selection.cost


def test_a_dearer_type_is_taken_where_it_is_worth_it() -> None:
    big = dataclasses.replace(MACHINE, type="compute-64", cores=64, hourly=1.6)
    assert (
        plan_fleet(
            {MACHINE: estimates(4)}, assumptions=SOME, bounds=FleetLimits(workers=4), optimize="time"
        ).selection.worker_count
        == 4
    )
    made = plan_fleet(
        {MACHINE: estimates(4), big: estimates(4, hours=0.9)},
        assumptions=SOME,
        bounds=FleetLimits(workers=4),
        optimize="cost",
    )
    assert made.selection.machine_type is big


def test_limits_that_nothing_meets_are_told_with_what_would() -> None:
    with pytest.raises(FleetLimit) as beyond:
        plan_fleet({MACHINE: estimates(4)}, assumptions=SOME, bounds=FleetLimits(workers=2, cost=1.0, seconds=HOUR))
    assert "1.00 EUR and 1 h 00 min" in beyond.value.what
    assert "the cheapest costs 9.6" in beyond.value.why


def test_nothing_to_build_or_nowhere_to_build_is_refused() -> None:
    with pytest.raises(UsageError):
        plan_fleet({MACHINE: ()}, assumptions=SOME, bounds=FleetLimits(workers=1))
    with pytest.raises(UsageError):
        plan_fleet({MACHINE: estimates(1)}, assumptions=SOME, bounds=FleetLimits(workers=0))


@pytest.mark.parametrize(
    ("seconds", "billed", "cost"), [(1.0, 1, 1 / 3600), (1.0, 3600, 1.0), (3600.0, 3600, 1.0), (3601.0, 3600, 2.0)]
)
def test_a_begun_step_is_paid_in_full(seconds: float, billed: float, cost: float) -> None:
    assert worker_cost(1.0, seconds, billed=billed) == pytest.approx(cost)


@given(
    st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0.05, 1.0), st.sampled_from("abc")), min_size=1, max_size=40),
    st.integers(1, 12),
    st.booleans(),
    st.booleans(),
)
def test_every_config_is_placed_once_and_no_machine_does_two_at_a_time(
    configs: list[tuple[float, float, str]], workers: int, cache: bool, wait_for_cold: bool
) -> None:
    all_works = [
        JobEstimate(config=f"{number}", group=group, cold=full * HOUR, warm=full * part * HOUR)
        for number, (full, part, group) in enumerate(configs)
    ]
    way = schedule_builds(
        all_works,
        types=[MACHINE] * workers,
        assumptions=SOME,
        cache=MACHINE if cache else None,
        wait_for_cold=wait_for_cold,
    )
    assert sorted(config.config for config in way.placements) == sorted(estimate.config for estimate in all_works)
    assert way.worker_count <= workers
    ends: dict[int, float] = {}
    for config in sorted(way.placements, key=lambda each: each.start):
        assert config.start >= ends.get(config.worker, SOME.startup) - 1e-6
        ends[config.worker] = config.start + config.seconds
    assert way.seconds >= max(config.seconds for config in way.placements)


def test_a_type_that_is_too_small_for_a_config_is_not_planned() -> None:
    big = dataclasses.replace(MACHINE, type="compute-64", cores=64, memory=256.0, hourly=9.0)
    small, *rest = estimates(4)
    large = dataclasses.replace(small, size=JobSize(memory=128.0))
    made = plan_fleet(
        {MACHINE: [large, *rest], big: [large, *rest]},
        assumptions=SOME,
        bounds=FleetLimits(workers=2),
        optimize="cost",
    )
    types = {job.config: job.type for job in made.estimates}
    assert types == {"config00": "compute-64", **{job.config: "compute-16" for job in rest}}, "though it is dearer"
    bounds = FleetLimits(workers=1)
    assert (
        plan_fleet(
            {MACHINE: [large, *rest], big: [large, *rest]}, assumptions=SOME, bounds=bounds
        ).selection.worker_count
        == 1
    )
    with pytest.raises(UsageError, match="no machine type is large enough for config00") as refused:
        plan_fleet({MACHINE: [large, *rest]}, assumptions=SOME, bounds=FleetLimits(workers=2))
    assert "it needs 128 GB of memory, and compute-16 has 16 cores, 64 GB of memory" in refused.value.why


def test_a_spot_worker_without_a_price_is_not_planned_at_the_full_one() -> None:
    unpriced = dataclasses.replace(MACHINE, provider="aws", spot_hourly=None, region="us-east-1")
    with pytest.raises(UsageError, match=r"no spot price of made-up\.16 in us-east-1 is known") as refused:
        plan_fleet({unpriced: estimates(2)}, assumptions=SOME, bounds=FleetLimits(workers=1), spot=True)
    assert "describe-spot-price-history" in refused.value.hint


def test_a_cache_without_a_price_is_not_planned_within_a_budget() -> None:
    """It would count as free, however long it runs."""
    configs = {MACHINE: estimates(4, hours=1, warm=0.5, groups=1)}
    unpriced = dataclasses.replace(MACHINE, type="small", name="small", hourly=0.0, is_priced=False)
    with pytest.raises(UsageError, match="the price of small is unknown, so --cost-limit cannot be kept"):
        plan_fleet(configs, assumptions=FREE, bounds=FleetLimits(workers=2, cost=5.0), cache=unpriced, optimize="time")
    way = plan_fleet(
        configs, assumptions=FREE, bounds=FleetLimits(workers=2), cache=unpriced, optimize="time"
    ).selection
    assert (way.cache, way.is_priced) == (unpriced, False)


def test_disks_addresses_and_collected_packages_are_part_of_the_cost() -> None:
    charged = dataclasses.replace(MACHINE, disk_hourly=0.1, address_hourly=0.05, egress=0.5)
    plain = schedule_builds(estimates(2), types=[MACHINE] * 1, assumptions=SOME)
    assumptions = dataclasses.replace(SOME, packages=3.0)
    way = schedule_builds(estimates(2), types=[charged] * 1, assumptions=assumptions)
    assert way.cost == pytest.approx(plain.cost + 0.15 * way.seconds / HOUR + 2 * 3 * 0.5)


def test_each_group_gets_the_cheapest_type_that_holds_it_and_stays_together() -> None:
    big = dataclasses.replace(MACHINE, type="big", cores=64, memory=256.0, hourly=3.2)
    gpu = dataclasses.replace(MACHINE, type="gpu", cores=4, memory=16.0, hourly=0.5, gpus=1)
    first, *rest = estimates(6, hours=1, warm=0.25, groups=2)
    configs = [
        dataclasses.replace(first, size=JobSize(memory=128.0)),
        *rest,
        JobEstimate(config="gpu", group="gpu", cold=HOUR, warm=HOUR, size=JobSize(gpus=1)),
    ]
    kinds = {MACHINE: configs, big: configs, gpu: configs}
    made = plan_fleet(kinds, assumptions=SOME, bounds=FleetLimits(workers=4), optimize="cost")
    types = {job.config: job.type for job in made.estimates}
    assert {types[job.config] for job in configs if job.group == "cuda0"} == {"big"}, "they share a compile"
    assert {types[job.config] for job in configs if job.group == "cuda1"} == {"gpu"}, "nothing is cheaper"
    assert types["gpu"] == "gpu"
    way = made.selection
    assert {way.worker_types[each.worker].type for each in way.placements if each.config == "config00"} == {"big"}
    charged = sum(
        worker_cost(kind.hourly, seconds, billed=kind.billed)
        for kind, seconds in zip(way.worker_types, way.worker_seconds, strict=True)
    )
    assert way.cost == pytest.approx(charged)
    quick = plan_fleet(kinds, assumptions=SOME, bounds=FleetLimits(workers=4), optimize="time").selection
    assert (quick.seconds < way.seconds, quick.worker_count > way.worker_count) == (True, True)
    with pytest.raises(UsageError, match="need workers of 2 machine types, and --workers is 1"):
        plan_fleet(kinds, assumptions=SOME, bounds=FleetLimits(workers=1))


def test_a_group_that_no_type_holds_is_split() -> None:
    gpu = dataclasses.replace(MACHINE, type="gpu", cores=4, memory=16.0, gpus=1)
    one, two = estimates(2, hours=1, warm=0.25, groups=1)
    configs = [dataclasses.replace(one, size=JobSize(cores=16)), dataclasses.replace(two, size=JobSize(gpus=1))]
    made = plan_fleet({MACHINE: configs, gpu: configs}, assumptions=SOME, bounds=FleetLimits(workers=2))
    assert [job.type for job in made.estimates] == ["compute-16", "gpu"]
    assert [each.cold for each in made.selection.placements] == [True, True], "no disk has the compile of both"


def test_a_type_has_no_more_workers_than_the_provider_has_machines() -> None:
    few = dataclasses.replace(MACHINE, limit=2)
    assert (
        plan_fleet(
            {few: estimates(6)}, assumptions=SOME, bounds=FleetLimits(workers=6), optimize="time"
        ).selection.worker_count
        == 2
    )


def test_a_scheduler_s_warm_builds_wait_for_the_cold_one() -> None:
    configs = estimates(4, hours=1, warm=0.25, groups=1)
    way = schedule_builds(configs, types=[MACHINE] * 4, assumptions=FREE, dependent=True)
    assert [(each.cold, each.start, each.seconds) for each in way.placements] == [
        (True, 0.0, HOUR),
        *[(False, HOUR, HOUR / 4)] * 3,
    ]
    assert way.seconds == 1.25 * HOUR


COST = Path(__file__).parents[4] / "docs" / "explanation" / "cost.md"


@pytest.mark.parametrize("folder", ["", "serving"])
def test_the_page_about_costs_has_what_the_feedstock_states_and_the_plan_assumes(folder: str) -> None:
    text = COST.read_text(encoding="utf-8")
    figure = re.search(r"(\d+) h on (\d+) cores, (\d+) core-hours", text)
    assert figure is not None
    hours, cores, work = map(int, figure.groups())
    feedstock, assumptions = recipe_feedstock.load(COST.parents[2] / folder), Assumptions.read()
    (stated,) = stated_durations(feedstock, {"one": JobSize()}, {"one": "cuda12.9"})
    assert (stated.seconds, stated.cores, hours * cores) == (hours * 3600, cores, work)
    others = re.search(r"([\d.]+) h on 16, ([\d.]+) h on 32, ([\d.]+) h on 64", text)
    assert others is not None
    assert [round(hours * assumptions.slowdown(many, cores), 1) for many in (16, 32, 64)] == list(
        map(float, others.groups())
    )
    assert f"| {assumptions.warm:g} of a cold one |" in text


def test_an_assumption_refuses_no_run_and_a_statement_does() -> None:
    bounds = FleetLimits(workers=2, seconds=HOUR, cost=1.0)
    stated = [dataclasses.replace(job, source=STATED) for job in estimates(4, hours=9)]
    assumed = [dataclasses.replace(job, source=DEFAULT) for job in stated]
    with pytest.raises(FleetLimit, match="no arrangement"):
        plan_fleet({MACHINE: stated}, assumptions=SOME, bounds=bounds)
    whole = plan_fleet({MACHINE: stated}, assumptions=SOME, bounds=FleetLimits(workers=2))
    assert "times   those of 4 configs are stated" in plan_as_text(whole)
    plan = plan_fleet({MACHINE: assumed}, assumptions=SOME, bounds=bounds, optimize="time")
    assert plan.selection == plan.cheapest, "the money is limited"
    assert "limit   if they are true, the run will be stopped" in plan_as_text(plan)


@pytest.mark.parametrize("warm", [0.05, 0.1, 0.2])
@pytest.mark.parametrize(
    ("configs", "workers", "groups"),
    [(15, 15, 3), (15, 6, 3), (15, 6, 5), (15, 4, 1), (15, 4, 3), (15, 4, 5), (200, 50, 12), (200, 50, 48)],
)
def test_a_schedule_is_within_a_tenth_of_the_lower_bound(configs: int, workers: int, groups: int, warm: float) -> None:
    jobs = estimates(configs, hours=3, warm=warm, groups=groups)
    sizes = [len(range(group, configs, groups)) for group in range(groups)]
    least = lower_bound(3 * HOUR, 3 * warm * HOUR, sizes, workers)
    seconds = schedule_builds(jobs, types=[MACHINE] * workers, assumptions=FREE).seconds
    assert least <= seconds * (1 + 1e-6)
    assert seconds <= 1.1001 * least


def shortest(cold: float, warm: float, groups: tuple[int, ...], workers: int) -> float:
    """Return the shortest of all schedules: every distribution of the configs over the workers."""
    configs = [group for group, size in enumerate(groups) for _ in range(size)]
    return min(
        max(
            len(mine) * warm + len(set(mine)) * (cold - warm)
            for worker in range(workers)
            for mine in [[group for group, other in zip(configs, owners, strict=True) if other == worker]]
        )
        for owners in itertools.product(range(workers), repeat=len(configs))
    )


@pytest.mark.parametrize("groups", [(3,), (2, 2), (3, 2), (1, 1, 1), (2, 2, 2), (4, 1, 1)])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("warm", [1.0, 2.0, 4.0])
def test_no_schedule_at_all_is_shorter_than_the_bound(groups: tuple[int, ...], workers: int, warm: float) -> None:
    assert lower_bound(10.0, warm, groups, workers) <= shortest(10.0, warm, groups, workers) + 1e-6


OVERHEADS = assumed_overheads(startup=240.0, collect=60.0, teardown=30.0)
BOUNDS = FleetLimits(workers=4)


def cores(limit: float, used: float = 0.0, **counted: bool) -> Quota:
    return Quota(name="vCPUs of the project", measure="cores", limit=limit, used=used, **counted)


def planned(bounds: FleetLimits) -> FleetPlan:
    """Return the plan of four configs on machines of 16 cores."""
    return plan_fleet({MACHINE: estimates(4)}, assumptions=OVERHEADS, bounds=bounds, optimize="time")


def test_a_plan_has_as_many_workers_as_the_quota_leaves_free() -> None:
    plan = planned(dataclasses.replace(BOUNDS, quotas=(cores(64, used=30),)))
    assert plan.selection.worker_count == 2
    assert plan.without_quotas is not None
    assert plan.without_quotas.worker_count == 4
    text = plan_as_text(plan)
    assert "quota   32 of 34 free vCPUs: vCPUs of the project, 30 of 64 in use" in text
    assert "limits this plan to 2 workers; for 4 request 94 vCPUs of vCPUs of the project, which is 64" in text
    data = plan_as_json(plan)
    assert (data["quotas"][0]["needed"], data["without_quotas"]["workers"]) == (32, 4)


def test_a_plan_that_fits_is_the_same_and_shows_what_it_needs() -> None:
    plan = planned(dataclasses.replace(BOUNDS, quotas=(cores(640),)))
    assert plan.selection == planned(BOUNDS).selection
    assert plan.without_quotas is None
    assert "quota   64 of 640 free vCPUs" in plan_as_text(plan)
    assert "quota" not in plan_as_text(planned(BOUNDS))


def test_where_not_one_worker_fits_the_error_says_what_to_request() -> None:
    with pytest.raises(FleetLimit, match="within the quotas of the account") as error:
        planned(dataclasses.replace(BOUNDS, quotas=(cores(8),)))
    assert error.value.why == "8 vCPUs are free: vCPUs of the project"
    assert "request 16 vCPUs" in error.value.hint


def test_a_quota_counts_spot_machines_or_those_on_demand_and_the_cache_is_on_demand() -> None:
    arrange = functools.partial(schedule_builds, estimates(2), types=[MACHINE] * 2, assumptions=OVERHEADS)
    machines = arrange(spot=True, cache=MACHINE).machines
    assert [cores(0, spot=spot).units_needed_by(machines) for spot in (True, False)] == [32, 16]
    assert [cores(0, gpu=gpu).units_needed_by(machines) for gpu in (True, False)] == [0, 48]
    graphics = dataclasses.replace(MACHINE, gpus=1)
    assert cores(0, spot=False, gpu=True).units_needed_by([(graphics, False), (graphics, True), (MACHINE, False)]) == 16
    count, memory = (Quota(name="", measure=measure, limit=0) for measure in ("machines", "memory"))
    assert (count.units_needed_by(machines), memory.units_needed_by(machines)) == (3, 3 * 64)


def test_the_controller_of_a_detached_run_has_its_part_of_the_quotas() -> None:
    """It is on demand: of a quota of spot machines it takes nothing."""
    row = dataclasses.asdict(cores(66, used=2))
    quota = Quota.from_provider_answer(row, MACHINE)
    assert (quota.reserved, quota.free_units) == (16, 48)
    assert Quota.from_provider_answer({**row, "spot": True}, MACHINE).free_units == 64
    plan = planned(dataclasses.replace(BOUNDS, quotas=(quota,)))
    assert plan.selection.worker_count == 2, "as with 3 in as many rounds"
    text = plan_as_text(plan)
    assert "quota   32 of 48 free vCPUs: vCPUs of the project, 2 of 66 in use, 16 for the controller" in text
    assert "for 4 request 82 vCPUs of vCPUs of the project, which is 66" in text


def test_the_disks_of_machines_are_within_their_quota() -> None:
    quota = Quota(name="volumes", measure="disk", limit=10 * MACHINE.disk, used=8 * MACHINE.disk)
    plan = planned(dataclasses.replace(BOUNDS, quotas=(quota,)))
    assert plan.selection.worker_count == 2
    free = 2 * MACHINE.disk
    assert f"quota   {free:g} of {free:g} free GB of disk: volumes" in plan_as_text(plan)


def test_a_fall_back_that_could_not_replace_all_workers_is_named_with_what_to_request() -> None:
    """Zones share the quotas of their region; a smaller type fits, and so do the planned machines."""
    large = dataclasses.replace(MACHINE, type="large", name="c9.large", cores=2 * MACHINE.cores)
    small = dataclasses.replace(MACHINE, type="small", name="c9.small", cores=1)
    plan = planned(dataclasses.replace(BOUNDS, quotas=(cores(64),)))
    offers = offers_in_request_order(plan.selection.machine_type, [small, large], zones=("a", "b"))
    request = "request 128 vCPUs of vCPUs of the project, which is 64"
    assert list(plan_plan.quota_warnings(plan, [offers])) == [
        f"quota   too small for 4 of the fall-back large (c9.large); {request}"
    ]
    on_demand = plan_of_spot_workers(cores(64, spot=True), cores(48, spot=False))
    offers = offers_in_request_order(on_demand.selection.machine_type, [ON_DEMAND], spot=True)
    (warning,) = plan_plan.quota_warnings(on_demand, [offers])
    assert warning.startswith("quota   too small for 4 of the fall-back compute-16")
    assert "; request 64 vCPUs" in warning


def plan_of_spot_workers(*limits: Quota) -> FleetPlan:
    """Return the plan of four configs on spot machines of 16 cores."""
    bounds = dataclasses.replace(BOUNDS, quotas=limits)
    return plan_fleet({MACHINE: estimates(4)}, assumptions=OVERHEADS, bounds=bounds, optimize="time", spot=True)


def test_tests_after_the_builds_that_have_no_room_are_named_before_they_begin() -> None:
    graphics = dataclasses.replace(MACHINE, type="gpu-t4", gpus=1)
    tests = WorkerTestPlan(configs=("one",), machine_type=graphics, spot=False, seconds=60.0, cost=0.0)
    plan = planned(dataclasses.replace(BOUNDS, quotas=(cores(0, gpu=True),), tests=tests))
    text = plan_as_text(plan)
    assert "quota   too small for the tests after the builds; request 16 vCPUs" in text
    assert plan_as_json(plan)["quota_warnings"][0].startswith("too small for the tests")


def test_the_quotas_of_aws_count_families_and_spot_apart() -> None:
    def instance(kind: str, cores: int, **more: str) -> dict[str, object]:
        return {"InstanceType": kind, "CpuOptions": {"CoreCount": cores, "ThreadsPerCore": 2}, **more}

    spot = {"InstanceLifecycle": "spot"}
    running = [instance("c7i.2xlarge", 4), instance("m5.large", 1, **spot), instance("g5.xlarge", 2)]
    running += [instance("p4d.24xlarge", 48), instance("inf1.xlarge", 2)]
    limits = {aws_quotas.STORAGE: 1.0, **{code: 64.0 for code, *_ in aws_quotas.CODES}}
    storage, *rows = aws_quotas.quotas(limits, running, [{"Size": 100}, {"Size": 150}])
    assert Quota.from_provider_answer(storage).free_units == 1024 - 250
    assert [(row["used"], row["spot"], row["gpu"]) for row in rows] == [
        (8, False, False),
        (2, True, False),
        (4, False, True),
        (0, True, True),
    ]
    assert Quota.from_provider_answer(rows[0]).free_units == 56


def test_the_limits_of_a_project_that_has_none_are_left_out() -> None:
    limits = {"maxTotalInstances": -1, "maxTotalCores": 20, "totalCoresUsed": 4, "maxTotalRAMSize": 51200}
    rows = [Quota.from_provider_answer(row) for row in openstack_account.quotas(limits)]
    assert [(row.measure, row.limit, row.free_units) for row in rows] == [("cores", 20, 16), ("memory", 50, 50)]
