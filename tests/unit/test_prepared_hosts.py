"""The preparation of a worker, and its end: the scripts of the roles, run by a shell."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

import jinja2
import pytest
import yaml

from tests.playbook_programs import ANSIBLE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PREPARE = yaml.safe_load((ANSIBLE / "roles/kiln_prepare/vars/main.yml").read_text())
BUILDER: dict[str, Any] = {"kiln_is_cache": False, "kiln_images": [], "kiln_build_options": []}
IMAGE = {"archive": "base.tar", "tag": "localhost/kiln-base:bookworm"}

pytestmark = pytest.mark.processes


def rendered(name: str, variables: dict[str, Any]) -> str:
    """Return a script of the role with its variables, as Ansible has it."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.tests["search"] = lambda text, pattern: re.search(pattern, text) is not None
    needed = environment.from_string(PREPARE["kiln_prepare_needs_engine"]).render(variables)
    known = {"kiln_boot_timeout": 1, "kiln_home": "/nonexistent/kiln", **variables}
    return environment.from_string(PREPARE[name]).render(known, kiln_prepare_needs_engine=needed == "True")


def programs(folder: Path, names: Sequence[str], text: str = "exit 0") -> dict[str, str]:
    """Return an environment with programs of these names, besides a shell's own commands and nothing else."""
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": str(folder)}


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({}, ["docker.io"]),
        ({"kiln_build_options": ["--container", "podman"]}, ["docker.io"]),
        ({"kiln_build_options": ["--jobs", "2", "--container", "none"]}, []),
        ({"kiln_build_options": ["--container=none"]}, []),
        ({"kiln_build_options": ["--container", "none"], "kiln_images": [IMAGE]}, ["docker.io"]),
        ({"kiln_build_options": ["--container", "none"], "kiln_is_cache": True}, ["docker.io"]),
    ],
)
def test_a_host_needs_a_container_engine_only_for_containers(
    tmp_path: Path, settings: dict[str, Any], missing: list[str]
) -> None:
    """A host that reaches no network could not install one."""
    script = rendered("kiln_prepare_missing", {**BUILDER, **settings})
    env = programs(tmp_path, ("git", "rsync", "python3", "systemctl", "grep"))
    listed = subprocess.run(["/bin/sh", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert listed.stdout.split() == [*missing, "BUSY"], "the stand-in of grep finds a build"


@pytest.mark.parametrize(("groups", "joined"), [("kiln docker", True), ("kiln", False)])
def test_the_user_that_builds_joins_the_group_of_docker_where_there_is_one(
    tmp_path: Path, groups: str, joined: bool
) -> None:
    """A host with Podman alone, or with neither, has no such group."""
    script = rendered("kiln_prepare_user", BUILDER).partition("install --directory")[0]
    called = tmp_path / "called"
    env = programs(tmp_path, ("id", "useradd"))
    programs(tmp_path, ("getent",), f'for group in {groups}; do [ "$2" != "$group" ] || exit 0; done; exit 2')
    programs(tmp_path, ("usermod",), f'echo "$*" >>{called}')
    subprocess.run(["/bin/sh", "-c", script], env=env, check=True)
    assert called.exists() is joined


def test_the_end_of_a_lease_stops_tests_as_it_stops_builds(tmp_path: Path) -> None:
    """A host that stays would go on with tests that hang, for nobody."""
    program = (ANSIBLE / "roles/kiln_prepare/files/root/usr/local/sbin/kiln-lease").read_text()
    settings, stopped = tmp_path / "settings", tmp_path / "stopped"
    settings.write_text("FIRST=0\nLAST=0\nAT_THE_END=stop\n")
    script = program.replace("/etc/kiln-lease", str(settings)).replace("/run/kiln-lease", str(tmp_path / "state"))
    env = programs(tmp_path, ("systemctl",), f'shift; for unit; do echo "$unit"; done >>{stopped}')
    env["PATH"] += ":/usr/bin:/bin"
    subprocess.run(["/bin/sh", "-c", script, "kiln-lease", "check"], env=env, check=True)
    assert {"kiln-build@*.service", "kiln-test.service"} <= set(stopped.read_text().split())


def test_a_released_host_runs_no_test_and_keeps_no_unit() -> None:
    script = yaml.safe_load((ANSIBLE / "roles/kiln_static/vars/main.yml").read_text())["kiln_static_release_script"]
    stopped = {word for line in script.splitlines() if line.startswith("systemctl stop ") for word in line.split()}
    assert {'"kiln-build@*.service"', "kiln-test.service"} <= stopped
    enabled = re.findall(r"systemctl enable .*?(\S+)$", PREPARE["kiln_prepare_after_tools"], re.MULTILINE)
    assert enabled == ["kiln-lease.timer"]
    assert "systemctl disable --quiet kiln-lease.timer" in script.splitlines(), "its link would stay"
