"""Plans within the quotas of an account, and what to request where they are too small."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from kiln.base.errors import FleetLimit
from kiln.fleet.plan import plan as plan_plan
from kiln.fleet.plan.output import plan_as_json, plan_as_text
from kiln.fleet.plan.plan import FleetLimits, FleetPlan, Quota, WorkerTestPlan, plan_fleet, schedule_builds
from kiln.fleet.worker_policies import ON_DEMAND, offers_in_request_order
from tests.fleets import MACHINE, assumed_overheads, estimates
from tests.playbook_programs import load

AWS, OPENSTACK = load("library/kiln_aws_quota.py"), load("library/kiln_openstack_quota.py")
OVERHEADS = assumed_overheads(startup=240.0, collect=60.0, teardown=30.0)
BOUNDS = FleetLimits(workers=4)


def cores(limit: float, used: float = 0.0, **counted: bool) -> Quota:
    return Quota(name="vCPUs of the project", measure="cores", limit=limit, used=used, **counted)


def planned(bounds: FleetLimits) -> FleetPlan:
    """Return the plan of four configs on machines of 16 cores."""
    return plan_fleet({MACHINE: estimates(4)}, assumptions=OVERHEADS, bounds=bounds, optimize="time")


def test_a_plan_has_as_many_workers_as_the_quota_leaves_free() -> None:
    plan = plan_plan.plan_within_quotas((cores(64, used=30),), planned, BOUNDS)
    assert plan.selection.worker_count == 2
    assert plan.without_quotas is not None
    assert plan.without_quotas.worker_count == 4
    text = plan_as_text(plan)
    assert "quota   32 of 34 free vCPUs: vCPUs of the project, 30 of 64 in use" in text
    assert "limits this plan to 2 workers; for 4 request 94 vCPUs of vCPUs of the project, which is 64" in text
    data = plan_as_json(plan)
    assert (data["quotas"][0]["needed"], data["without_quotas"]["workers"]) == (32, 4)


def test_a_plan_that_fits_is_the_same_and_shows_what_it_needs() -> None:
    plan = plan_plan.plan_within_quotas((cores(640),), planned, BOUNDS)
    assert plan.selection == planned(BOUNDS).selection
    assert plan.without_quotas is None
    assert "quota   64 of 640 free vCPUs" in plan_as_text(plan)
    assert "quota" not in plan_as_text(plan_plan.plan_within_quotas((), planned, BOUNDS))


def test_where_not_one_worker_fits_the_error_says_what_to_request() -> None:
    with pytest.raises(FleetLimit, match="within the quotas of the account") as error:
        plan_plan.plan_within_quotas((cores(8),), planned, BOUNDS)
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
    plan = plan_plan.plan_within_quotas((quota,), planned, BOUNDS)
    assert plan.selection.worker_count == 2, "as with 3 in as many rounds"
    text = plan_as_text(plan)
    assert "quota   32 of 48 free vCPUs: vCPUs of the project, 2 of 66 in use, 16 for the controller" in text
    assert "for 4 request 82 vCPUs of vCPUs of the project, which is 66" in text


def test_the_disks_of_machines_are_within_their_quota() -> None:
    quota = Quota(name="volumes", measure="disk", limit=10 * MACHINE.disk, used=8 * MACHINE.disk)
    plan = plan_plan.plan_within_quotas((quota,), planned, BOUNDS)
    assert plan.selection.worker_count == 2
    free = 2 * MACHINE.disk
    assert f"quota   {free:g} of {free:g} free GB of disk: volumes" in plan_as_text(plan)


def test_a_fall_back_that_could_not_replace_all_workers_is_named_with_what_to_request() -> None:
    """Zones share the quotas of their region; a smaller type fits, and so do the planned machines."""
    large = dataclasses.replace(MACHINE, type="large", name="c9.large", cores=2 * MACHINE.cores)
    small = dataclasses.replace(MACHINE, type="small", name="c9.small", cores=1)
    plan = plan_plan.plan_within_quotas((cores(64),), planned, BOUNDS)
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

    def planned(bounds: FleetLimits) -> FleetPlan:
        return plan_fleet({MACHINE: estimates(4)}, assumptions=OVERHEADS, bounds=bounds, optimize="time", spot=True)

    return plan_plan.plan_within_quotas(limits, planned, BOUNDS)


def test_tests_after_the_builds_that_have_no_room_are_named_before_they_begin() -> None:
    graphics = dataclasses.replace(MACHINE, type="gpu-t4", gpus=1)
    tests = WorkerTestPlan(configs=("one",), machine_type=graphics, spot=False, seconds=60.0, cost=0.0)
    plan = plan_plan.plan_within_quotas((cores(0, gpu=True),), planned, dataclasses.replace(BOUNDS, tests=tests))
    text = plan_as_text(plan)
    assert "quota   too small for the tests after the builds; request 16 vCPUs" in text
    assert plan_as_json(plan)["quota_warnings"][0].startswith("too small for the tests")


def test_the_quotas_of_aws_count_families_and_spot_apart() -> None:
    def instance(kind: str, cores: int, **more: str) -> dict[str, object]:
        return {"InstanceType": kind, "CpuOptions": {"CoreCount": cores, "ThreadsPerCore": 2}, **more}

    spot = {"InstanceLifecycle": "spot"}
    running = [instance("c7i.2xlarge", 4), instance("m5.large", 1, **spot), instance("g5.xlarge", 2)]
    running += [instance("p4d.24xlarge", 48), instance("inf1.xlarge", 2)]
    limits = {AWS.STORAGE: 1.0, **{code: 64.0 for code, *_ in AWS.CODES}}
    storage, *rows = AWS.quotas(limits, running, [{"Size": 100}, {"Size": 150}])
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
    rows = [Quota.from_provider_answer(row) for row in OPENSTACK.quotas(limits)]
    assert [(row.measure, row.limit, row.free_units) for row in rows] == [("cores", 20, 16), ("memory", 50, 50)]
