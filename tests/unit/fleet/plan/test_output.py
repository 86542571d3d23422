"""Plans and states of fleet runs as text and as JSON."""

from __future__ import annotations

import dataclasses
import re
import time
from types import SimpleNamespace
from typing import Any, cast
from xml.etree.ElementTree import fromstring

import pytest

from kiln.fleet.model import FleetRun, JobRecord, JobState, Offer, WorkerRecord, WorkerState
from kiln.fleet.plan import output
from kiln.fleet.plan.picture import plan_as_html
from kiln.fleet.plan.plan import FleetLimits, WorkerTestPlan, plan_fleet
from kiln.run.simulation import DEFAULT
from kiln.state.results import JobEstimate, JobSize, RunCost
from tests.fleets import HOUR, MACHINE, assumed_overheads, estimates

OVERHEADS = assumed_overheads(startup=240.0, collect=60.0, teardown=30.0)
RUN = FleetRun(
    id="r1",
    provider="aws",
    type="compute-16",
    started=1.0,
    finished=None,
    number=3,
    lives=False,
    workers=(WorkerRecord(name="kiln-r1-1", type="t", state=WorkerState.LOST, requested=1.0, reason="gone\nmore"),),
    jobs=(
        JobRecord(
            config="a", worker="kiln-r1-1", attempt=2, state=JobState.LOST, started=2.0, reason="no answer\nmore"
        ),
        JobRecord(config="c", worker="kiln-r1-1", attempt=1, state=JobState.COLLECTED, started=2.0, reason="success"),
    ),
)


def test_a_plan_shows_the_schedule_the_cost_and_the_alternatives() -> None:
    text = output.plan_as_text(
        plan_fleet(
            {MACHINE: estimates(4, warm=0.2, groups=2)},
            assumptions=OVERHEADS,
            bounds=FleetLimits(workers=2),
            cache=MACHINE,
        )
    )
    assert "cold, cuda0" in text
    (took,) = re.findall(r"(?m)^.*selected.*? (\d+ h \d+ min) ", text)[:1]
    way_end = took.replace(" h ", ":").removesuffix(" min")
    assert {line.split()[0] for line in text.splitlines() if "compute-16 (" in line} == {
        *("selected,", "no"),
    }
    assert " build " in text.splitlines()[0]
    assert text.splitlines()[0].endswith(f"0 to {way_end} h")
    assert re.search(r"(?m)^end     at about .*\d\d:\d\d, if the run starts now$", text)
    assert "price   0.8 EUR an hour for made-up.16: made up for tests, 2026-11-21" in text


def test_a_plan_of_machines_that_cost_nothing_says_so() -> None:
    kind = dataclasses.replace(MACHINE, provider="static", hourly=0.0, spot_hourly=0.0, source="machines that you have")
    jobs = [dataclasses.replace(job, source=DEFAULT) for job in estimates(2)]
    text = output.plan_as_text(plan_fleet({kind: jobs}, assumptions=OVERHEADS, bounds=FleetLimits(workers=2)))
    assert "price   nothing: machines that you have\n" in text
    assert "times   2 of 2 configs were never built: times with '?' are assumed" in text


def test_a_plan_with_spot_workers_shows_the_source_of_their_price() -> None:
    kind = dataclasses.replace(MACHINE, spot_source="my spot history", spot_date="2026-11-22")
    spot = plan_fleet({kind: estimates(2)}, assumptions=OVERHEADS, bounds=FleetLimits(workers=2), spot=True)
    text = output.plan_as_text(spot)
    assert "0.3 EUR an hour for made-up.16 (spot): my spot history, 2026-11-22" in text
    assert "made up for tests" not in text


def test_a_plan_shows_what_configs_need_and_the_time_limits_that_are_too_short() -> None:
    sized, plain = estimates(2, hours=3, groups=2)
    sized = dataclasses.replace(sized, size=JobSize(cores=1, memory=4.0, time_limit=2 * 3600.0))

    def lines_of(*jobs: JobEstimate) -> list[str]:
        bounds = FleetLimits(workers=2)
        return output.plan_as_text(plan_fleet({MACHINE: jobs}, assumptions=OVERHEADS, bounds=bounds)).splitlines()

    lines = lines_of(sized, plain)
    assert lines[0].split()[:3] == ["worker", "config", "needs"]
    assert sum("1 core, 4 GB of memory, at most 2 h 00 min" in line for line in lines) == 1
    (limit,) = (line for line in lines if line.startswith("limit "))
    assert limit == "limit   config00: 3 h 00 min are expected, and it is ended after 2 h 00 min"
    lines = lines_of(plain)
    assert lines[0].split()[:3] == ["worker", "config", "build"]
    assert not any(line.startswith("limit") for line in lines)


def test_the_end_and_the_cost_of_a_plan_have_its_tests_in_them() -> None:
    def planned(tests: WorkerTestPlan | None) -> tuple[dict[str, Any], str]:
        bounds = FleetLimits(workers=2, tests=tests)
        way = plan_fleet({MACHINE: estimates(2)}, assumptions=OVERHEADS, bounds=bounds, optimize="time")
        data = output.plan_as_json(way)
        assert data["chosen"]["seconds"] == way.selection.seconds
        (line,) = (line for line in output.plan_as_text(way).splitlines() if line.startswith("end "))
        return data["chosen"]["cost"], line

    tests = WorkerTestPlan(configs=("a",), machine_type=MACHINE, spot=False, seconds=10 * HOUR, cost=7.0)
    (without, first), (tested, second) = planned(None), planned(tests)
    unpriced, _ = planned(dataclasses.replace(tests, machine_type=dataclasses.replace(MACHINE, is_priced=False)))
    assert tested["expected"] == pytest.approx(without["expected"] + 7.0)
    assert tested["end"] == pytest.approx(without["end"] + 10 * HOUR, abs=60)
    assert first != second
    assert (unpriced["currency"], unpriced["expected"]) == (None, None)


def test_the_status_of_a_killed_run_names_the_commands_that_resume_and_end_it() -> None:
    text = output.status_as_text([RUN], {})
    assert "r1: aws, compute-16, run 3, its controller is gone" in text
    assert "more" not in text, "of a reason the first line"
    rows = {line.split()[0]: line for line in text.splitlines() if line}
    assert rows["a"].endswith(" no answer")
    assert rows["c"].endswith(" 1"), "what has not failed needs no reason"
    assert "'kiln fleet resume r1' continues it, 'kiln fleet down r1' terminates its workers" in text
    assert output.status_as_text([], {}) == "the ledger has no fleet runs"
    (data,) = output.status_as_json([RUN], {})
    assert (data["workers"][0]["state"], data["jobs"][0]["state"]) == ("lost", "lost")


def test_the_status_of_a_run_has_its_cost_and_when_each_config_is_expected() -> None:
    running = dataclasses.replace(RUN, lives=True)
    cost = RunCost(spent=3.2, expected=16.204, currency="USD", end=1.79e9, config_ends={"a": 1.79e9, "b": 1.79e9})
    text = output.status_as_text([running], {"r1": cost})
    assert "cost 3.20 of about 16.20 USD, the end at about " in text
    (waiting,) = [line for line in text.splitlines() if line.startswith("b ")]
    assert "waiting" in waiting
    assert time.strftime("%H:%M", time.localtime(1.79e9)) in waiting
    starts = dataclasses.replace(cost, config_starts={"b": 1.79e9 - 60}, config_ends={"a": 1.79e9, "b": 1.79e9 + 60})
    job = dataclasses.replace(RUN.jobs[0], state=JobState.RUNNING)
    lines = output.status_as_text([dataclasses.replace(running, jobs=(job,))], {"r1": starts}).splitlines()
    begin, middle, end = (time.strftime("%H:%M", time.localtime(1.79e9 + shift)) for shift in (-60, 0, 60))
    assert re.fullmatch(rf"a +running +kiln-r1-1 +2  until .*{middle}", lines[-2])
    assert re.fullmatch(rf"b +waiting .*{begin} to {end}", lines[-1])
    (data,) = output.status_as_json([running], {"r1": cost})
    assert (data["cost"]["spent"], data["cost"]["configs"]["b"]["end"]) == (3.2, 1.79e9)


def test_a_config_whose_packages_are_being_tested_is_not_shown_as_waiting() -> None:
    """Its job has a name of its own, its expected times have the config's."""
    job = dataclasses.replace(RUN.jobs[0], config="a (tests)", state=JobState.RUNNING)
    run = dataclasses.replace(RUN, lives=True, jobs=(job,))
    cost = RunCost(spent=3.2, expected=16.2, currency="USD", end=1.79e9, config_ends={"a": 1.79e9})
    *_, line = output.status_as_text([run], {"r1": cost}).splitlines()
    end = time.strftime("%H:%M", time.localtime(1.79e9))
    assert re.fullmatch(rf"a \(tests\) +running +kiln-r1-1 +2  until .*{end}", line)
    (data,) = output.status_as_json([run], {"r1": cost})
    assert data["cost"]["configs"] == {"a": {"start": job.started, "end": 1.79e9}}


PLAN = cast("Any", SimpleNamespace(estimates=estimates(2, hours=3.0)))
WAY = cast("Any", SimpleNamespace(machine_type=MACHINE, cost=1.0, spot=True))


def test_as_many_reclaimed_spot_workers_as_lost_ones_count() -> None:
    on_demand, spot = Offer(machine_type=MACHINE), Offer(machine_type=MACHINE, spot=True)
    greatest = output.greatest_cost_of_lost_workers
    assert greatest(PLAN, [on_demand], 10, 12, startup=0.0) == pytest.approx(22 * 3 * MACHINE.hourly)
    assert greatest(PLAN, [spot], 10, 12, startup=0.0) == pytest.approx(32 * 3 * 0.3)
    assert greatest(PLAN, iter([spot, on_demand]), 10, 12, startup=0.0) == pytest.approx(32 * 3 * 0.8)


def test_the_plan_says_that_the_replacements_of_reclaimed_workers_have_a_limit() -> None:
    spot = Offer(machine_type=MACHINE, spot=True)
    of_run = output.RunTerms(
        offers=(spot,), attempts=10, replacements=10, joint_replacements=12, losses=18.0, lifetime=86400.0
    )
    (losses, _) = output.run_terms_lines(of_run, WAY)
    assert losses == (
        "losses  a lost worker is replaced, 32 times at most; were all lost at the end of their builds, that would cost"
        " 18.00 EUR more: --cost-limit sets the most that the run may cost"
    )


def test_the_picture_has_every_arrangement_and_says_why_one_was_chosen() -> None:
    kinds = [
        dataclasses.replace(MACHINE, type=f"compute-{cores}", name=f"<c{cores}>", cores=cores, hourly=hourly)
        for cores, hourly in ((8, 0.4), (32, 1.7), (96, 9.0))
    ]
    jobs = {kind: estimates(4, hours=16 / kind.cores) for kind in kinds}
    plan = plan_fleet(jobs, assumptions=OVERHEADS, bounds=FleetLimits(workers=4))
    page = plan_as_html(plan)
    assert page.count("<circle") == page.count("<tr><td>") + page.count('<tr class="chosen">') == len(plan.front) > 2
    assert f"<p>{output.choice_reason(plan)}.</p>" in page
    assert "&lt;c32&gt;" in page
    assert "<c32>" not in page
    fromstring(page.partition("<svg")[1] + page.partition("<svg")[2].partition("</svg>")[0] + "</svg>")
    alone = plan_as_html(plan_fleet({MACHINE: estimates(1)}, assumptions=OVERHEADS, bounds=FleetLimits(workers=1)))
    assert "no other arrangement is faster, or cheaper" in alone
    assert "<svg" not in alone
