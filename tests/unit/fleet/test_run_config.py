"""The bound on the cost of workers without a controller, and the timer for providers without one."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from kiln.fleet.plan.plan import schedule_builds
from kiln.fleet.run_config import greatest_cost_text, sweep_timer_script
from tests.fleets import MACHINE, assumed_overheads, estimates

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ("aws", "terminate themselves within 1.5 h, which costs 2.40 EUR at most"),
        ("openstack", "delete themselves within 1.5 h, which costs 2.40 EUR at most, if the cloud grants"),
        (
            "openstack",
            "else openstack charges for them until they are deleted, and only a sweep from another computer bounds",
        ),
        ("static", "nothing is charged"),
        ("local", "nothing is charged"),
    ],
)
def test_a_plan_states_the_greatest_cost_after_the_controller_is_gone_for_good(provider: str, words: str) -> None:
    machine_type = dataclasses.replace(MACHINE, provider=provider)
    way = schedule_builds(
        estimates(2), types=[machine_type] * 2, assumptions=assumed_overheads(startup=1, collect=1, teardown=1)
    )
    assert words in greatest_cost_text(way)
    dearer = dataclasses.replace(machine_type, disk_hourly=0.1)
    charged = dataclasses.replace(way, machine_type=dearer, worker_types=(dearer,) * 2)
    assert (words in greatest_cost_text(charged)) == ("EUR" not in words), "disks are charged for as long"


@pytest.mark.processes
def test_the_timer_script_writes_units_that_systemd_accepts(tmp_path: Path) -> None:
    """A fake systemctl records its calls; the words of the command are unchanged in the unit."""
    argv = ("/usr/bin/env", "python", "-C", "a folder with 100% $HOME", 'a "quote"')
    environment = {"OS_CLOUD": "ovh", "OS_REGION_NAME": "GRA 11"}
    script = sweep_timer_script("openstack", argv, folder="/tmp", environment=environment, every=900.0)
    for name in ("systemctl", "loginctl"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >>"$HOME/done"\n')
        (tmp_path / name).chmod(0o755)
    own = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["sh"], input=script, text=True, check=True, env=own)
    units = tmp_path / ".config" / "systemd" / "user"
    service = (units / "kiln-sweep-openstack.service").read_text()
    assert 'ExecStart=/usr/bin/env python -C "a folder with 100%% $$HOME" "a \\"quote\\""\n' in service
    assert 'Environment="OS_REGION_NAME=GRA 11"\n' in service
    assert "OnUnitInactiveSec=900\n" in (units / "kiln-sweep-openstack.timer").read_text()
    assert "enable --now kiln-sweep-openstack.timer" in (tmp_path / "done").read_text()
    if shutil.which("systemd-analyze"):
        files = [str(path) for path in units.iterdir()]
        subprocess.run(["systemd-analyze", "--man=no", "verify", *files], check=True, env=own, capture_output=True)
