"""A plan as text says what is known of its time and its disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kiln.base.system.machine import MachineResources
from kiln.build.job.job import BuildOptions, RunOptions
from kiln.build.rehearsal.wheels import LockedWheel, RehearsalPlan, StandIn
from kiln.feedstock.sources import SourceFile
from kiln.run.plan import RunPlan, plan_as_text
from kiln.state.results import ConfigRun, ConfigState
from kiln.state.store.layout import ArtifactLayout


def a_plan(*, estimate: float | None, **more: Any) -> RunPlan:
    waiting = ConfigRun(config="a", state=ConfigState.WAITING, group="cpu", cold=True, estimate=estimate)
    fixed = {
        "options": RunOptions(configs=("a",), command="kiln build a", build=BuildOptions()),
        "layout": ArtifactLayout(root=Path("build_artifacts")),
        "cores": 8,
        "container": "docker",
        "image": None,
        "configs": (waiting,),
        "jobs_of": {},
        "seconds": estimate,
        "disk": 500_000_000,
        "share": MachineResources(cores=8, memory=16 * 10**9),
        "notes": (),
    }
    return RunPlan(**{**fixed, **more})


def test_the_disk_of_a_config_that_was_never_built_is_a_lower_bound() -> None:
    assert plan_as_text(a_plan(estimate=None)).splitlines()[-2:] == [
        "temporary disk: at least 500 MB, no similar config was built here yet",
        "time: unknown, no similar config was built here yet",
    ]


def test_the_disk_of_a_config_that_was_built_is_that_of_its_last_build() -> None:
    lines = plan_as_text(a_plan(estimate=90.0, disk=40 * 10**9)).splitlines()
    assert lines[-2:] == ["temporary disk: 40 GB", "time: 1 min 30 s"]


@pytest.mark.parametrize(("compiles", "line"), [(True, "build first of cpu  a"), (False, "build  a")])
def test_a_group_is_named_where_its_configs_share_a_compile(compiles: bool, line: str) -> None:
    assert plan_as_text(a_plan(estimate=None, compiles=compiles)).splitlines()[0] == line


def test_a_rehearsal_says_what_it_is_made_from_once_for_configs_that_share_it() -> None:
    wheel = LockedWheel(name="six", version="1.17", file="six.whl", size=1, sha256="a", pythons=("3.11",))
    made = StandIn(name="gcc_linux-64", version="12.2")
    source = SourceFile(name="a.tar.gz", sha256="b", url="https://x/a.tar.gz", origin="pip's index")
    plan = RehearsalPlan(python="3.11", dependencies=(wheel,), stand_ins=(made,), sources=(source,))
    waiting = tuple(ConfigRun(config=name, state=ConfigState.WAITING, group="cpu") for name in ("a", "b", "c"))
    rehearsals = {"a": plan.summary, "b": plan.summary, "c": RehearsalPlan(python="3.12").summary}
    text = plan_as_text(a_plan(estimate=None, configs=waiting, rehearsals=rehearsals))
    assert text.splitlines()[-9:] == [
        "",
        "a, b from:",
        "    python        3.11",
        "    wheels        six 1.17",
        "    this machine  gcc_linux-64 12.2",
        "    sources       a.tar.gz (pip's index)",
        "",
        "c from:",
        "    python        3.12",
    ]
