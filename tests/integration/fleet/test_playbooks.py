"""Playbooks of a killed controller."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from kiln.base import bootstrap
from kiln.base.errors import UnsupportedPython
from kiln.fleet.ansible import playbooks
from tests.integration.fleet.helpers import ROOT
from tests.waiting import until

pytestmark = [
    pytest.mark.sampled,
    pytest.mark.needs("docker", "ssh", "ssh-keygen", "rsync", "nginx"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason=f"{UnsupportedPython.__name__}: Ansible needs Python 3.11"),
]
PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.command: sleep 611
"""
PLAYER = """
import os, sys
from pathlib import Path
from kiln.fleet.ansible.playbooks import PlaybookRunner, PlaybookSite
folder = Path(sys.argv[1])
environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
environment |= {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
site = PlaybookSite(folder=folder, playbooks=folder, python=Path(sys.argv[2]), variables={}, environment=environment)
PlaybookRunner(site).run_playbook("play.yml")
"""


def test_a_killed_controller_leaves_no_playbook_running_and_none_of_its_files(tmp_path: Path) -> None:
    """A file of Ansible's has all arguments of a module: of those that request workers, private keys are one."""
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "host_vars").symlink_to(ROOT / "ansible" / "host_vars")
    places = [tmp_path / name for name in ("home", "tmp", "runner")]
    for place in places[:2]:
        place.mkdir()
    python = bootstrap.ensure_fleet_environment(ROOT)
    with subprocess.Popen((sys.executable, "-c", PLAYER, str(tmp_path), str(python)), cwd=ROOT, text=True) as process:
        until(
            lambda: any(sleeps(pid) for pid in playbooks.find_processes_of_run(tmp_path)),
            "the playbook runs",
            process,
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda: not playbooks.find_processes_of_run(tmp_path), "nothing of it runs")
    assert [file for place in places for file in place.rglob("*") if not file.is_dir()] == []


def sleeps(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", b"611"]
    return False
