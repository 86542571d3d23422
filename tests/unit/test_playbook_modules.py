"""The modules and filters of the playbooks, tested as plain functions."""

from __future__ import annotations

import datetime as dt
import errno
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import pytest
import yaml

from kiln.fleet.ansible import existing_hosts, run_folder
from kiln.fleet.answers import AnswerKind, classify
from tests.playbook_programs import ANSIBLE, load

if TYPE_CHECKING:
    from types import ModuleType


MACHINES = load("filter_plugins/kiln_machines.py")
JOB = load("roles/kiln_prepare/files/root/usr/local/sbin/kiln-job")


@pytest.mark.parametrize(("text", "expires"), [("7", 7), ("", 0), ("tomorrow", 0), ("-7", 0), ("7.5", 0)])
def test_a_tag_that_others_have_written_hides_no_machine(text: str, expires: int) -> None:
    tags = {"kiln-fleet": "true", "kiln-expires": text}
    servers = [{"metadata": data, "id": "s", "status": "ACTIVE"} for data in (tags, {"kiln-fleet": "true"})]
    assert [machine["expires"] for machine in MACHINES.from_openstack(servers)] == [expires, 0]


def test_machines_of_every_provider_have_one_shape() -> None:
    tags = {"kiln-fleet": "true", "kiln-worker": "m", "kiln-run": "r", "kiln-type": "t", "kiln-expires": "7"}
    tags["kiln-user"] = "ann"
    aws = {
        "tags": tags,
        "instance_id": "i-1",
        "instance_type": "c5.large",
        "state": {"name": "running"},
        "public_ip_address": "192.0.2.1",
        "private_ip_address": "10.0.0.1",
    }
    docker = {
        "Config": {"Labels": tags},
        "Id": "c1",
        "State": {"Status": "running"},
        "NetworkSettings": {"Networks": {"bridge": {"IPAddress": "192.0.2.2"}}},
    }
    fixed = {"addr": "10.0.0.3", "version": 4, "OS-EXT-IPS:type": "fixed"}
    floating = {"addr": "192.0.2.3", "version": 4, "OS-EXT-IPS:type": "floating"}
    server = {
        "metadata": tags,
        "id": "s1",
        "status": "ACTIVE",
        "flavor": {"original_name": "c3-32"},
        "addresses": {"private": [fixed, floating]},
    }
    result = [
        *MACHINES.from_aws([aws]),
        *MACHINES.from_docker([docker]),
        *MACHINES.from_openstack([server, {**server, "metadata": {}}]),
    ]
    shape = {"name": "m", "run": "r", "type": "t", "expires": 7, "account_user": "ann"}
    assert [{key: item[key] for key in shape} for item in result] == [shape] * 3
    assert [item["address"] for item in result] == ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
    assert [item["private"] for item in result] == ["10.0.0.1", "192.0.2.2", "10.0.0.3"]
    assert [item["id"] for item in result] == ["i-1", "c1", "s1"]


@pytest.mark.parametrize(
    ("arn", "user"),
    [
        ("arn:aws:iam::123456789012:user/kiln", "kiln"),
        ("arn:aws:iam::123456789012:user/team/path/kiln", "kiln"),
        ("arn:aws:iam::123456789012:root", "root"),
        ("arn:aws:sts::123456789012:federated-user/ann", "ann"),
        ("arn:aws:sts::123456789012:assumed-role/builders/ann@example.org", "builders/ann@example.org"),
        ("arn:aws:sts::123456789012:assumed-role/builders/botocore-session-1763876000", "builders"),
        ("arn:aws:sts::123456789012:assumed-role/builders/i-0123456789abcdef0", "builders"),
        ("", ""),
    ],
)
def test_the_user_is_whom_sts_names_without_what_each_session_has_anew(arn: str, user: str) -> None:
    assert MACHINES.user_from_arn(arn) == user


def test_the_user_is_a_tag_of_every_provider() -> None:
    assert MACHINES.user_text("Ann Lee\n(CI)") == "Ann-Lee-CI-"
    assert len(MACHINES.user_text("a" * 300)) == 128
    assert MACHINES.user_text("") == MACHINES.user_text(existing_hosts.account_user()), "user@host of this computer"


def test_a_sweep_takes_what_is_the_users_own_or_of_an_older_kiln() -> None:
    tagged = {"tags": {"kiln-user": "ann"}, "description": ""}
    items = [
        {"account_user": "ann"},
        {"account_user": "bob"},
        {"account_user": ""},
        tagged,
        {"tags": [], "description": "ssh from the controller of run one of kiln for bob"},
        {"description": "the cache of run one of kiln"},
    ]
    assert MACHINES.of_user(items, "ann") == [items[0], items[2], tagged, items[5]]
    assert MACHINES.of_user(items, "") == items
    ours = [{"account_user": "us\\ann@host"}]
    assert MACHINES.of_user(ours, "us\\ann@host") == ours, "a name as a list of machines shows it"
    machine = {"name": "kiln-one-1", "run": "one", "account_user": "ann"}
    (note,) = MACHINES.openstack_address_notes([machine])
    assert MACHINES.of_user([{"description": note}], "ann")
    assert not MACHINES.of_user([{"description": note}], "bob")


def test_a_sweep_leaves_the_new_groups_of_runs_that_may_create_their_first_worker() -> None:
    now = dt.datetime.now(tz=dt.timezone.utc)
    note = "ssh from the controller of run {} of kiln for ann"
    times = [f"{now - dt.timedelta(seconds=age):%Y-%m-%dT%H:%M:%SZ}" for age in (101, 9)]
    old, new, unknown = (
        {"description": note.format(run), "tags": [], "created_at": created}
        for run, created in zip(("one", "two", "three"), (*times, ""), strict=True)
    )
    expired, living, damaged = (
        {"description": note.format(run), "tags": {"kiln-run": run, "kiln-expires": expires}}
        for run, expires in (
            ("four", f"{now.timestamp() - 9:.0f}"),
            ("five", f"{now.timestamp() + 99:.0f}"),
            ("six", "tomorrow"),
        )
    )
    template = {"tags": living["tags"]}
    items: list[object] = [old, new, unknown, expired, living, damaged, template]
    assert MACHINES.abandoned(items, [], 100) == [old, unknown, expired, damaged]
    assert MACHINES.abandoned(items, ["two", "five"], 100) == items


def test_a_server_that_is_shut_off_has_ended_and_one_of_another_owner_is_a_stranger() -> None:
    def server(name: str, status: str, owner: str) -> dict[str, Any]:
        tags = {"kiln-fleet": "true", "kiln-run": "r", "kiln-worker": name, "kiln-owner": owner}
        return {"id": name, "name": name, "status": status, "metadata": tags}

    result = MACHINES.from_openstack(
        [server("a", "ACTIVE", "x"), server("b", "SHUTOFF", "y"), server("c", "ERROR", "")]
    )
    assert {item["name"]: item["ended"] for item in result} == {"a": False, "b": True, "c": True}
    assert [item["name"] for item in MACHINES.own(result, "x")] == ["a", "c"]
    assert [item["name"] for item in MACHINES.foreign(result, "x")] == ["b"]


def instances(*states: str, fault: str = "") -> Any:
    """Return machines of AWS in states, with the ids i-1, i-2, ..."""
    return MACHINES.from_aws(
        {"instance_id": f"i-{number}", "instance_type": "", "tags": {}, "state": {"name": state},
         "state_reason": {"message": fault} if state == "terminated" else None}
        for number, state in enumerate(states, 1)
    )  # fmt: skip


def servers(**states: str) -> Any:
    """Return servers of kiln in states by their ids; those in capitals alone have a floating address."""
    address = {"addr": "192.0.2.3", "version": 4, "OS-EXT-IPS:type": "floating"}
    return MACHINES.from_openstack(
        {"id": name, "status": state.upper(), "metadata": {"kiln-fleet": "true"},
         "addresses": {"private": [address]} if state.isupper() else {}}
        for name, state in states.items()
    )  # fmt: skip


def test_a_machine_that_is_not_listed_yet_is_pending() -> None:
    listed = instances("pending", "running", "terminated")
    assert MACHINES.pending(listed, ["i-1", "i-2", "i-3", "i-4"]) == ["i-1", "i-4"]
    assert MACHINES.pending([], []) == []
    listed = servers(a="build", b="active", c="error", d="ACTIVE")
    assert MACHINES.pending(listed, "abcde", floating=False) == ["a", "e"]
    assert MACHINES.pending(listed, "abcde", floating=True) == ["a", "b", "e"]
    assert MACHINES.pending(listed, [], floating=True) == []


def test_an_accepted_machine_that_does_not_run_is_refused_with_a_reason() -> None:
    def item(name: str) -> dict[str, str]:
        return {"name": name, "type": "compute-8"}

    fault = "Server.InsufficientInstanceCapacity: Insufficient capacity to satisfy instance request"
    listed = instances("running", "terminated", "pending", fault=fault)
    results = [{"item": item(f"w{number}"), "instance_ids": [f"i-{number}"]} for number in range(1, 5)]
    refused = MACHINES.unstarted([*results, {"item": item("w5"), "failed": True}], listed)
    assert [(row["name"], row["type"], row["unlisted"]) for row in refused] == [
        ("w2", "compute-8", False),
        ("w3", "compute-8", False),
        ("w4", "compute-8", True),
    ]
    assert refused[0]["reason"] == fault
    assert classify(refused[0]["reason"]).kind is AnswerKind.CAPACITY
    assert refused[1]["reason"] == "the machine is in state pending"
    assert "does not list the machine" in refused[2]["reason"]
    results = [{"item": item(name), "server": {"id": name, "name": name}} for name in "abc"]
    unlisted, broken = MACHINES.unstarted(results, servers(a="active", c="error"))
    assert (unlisted["name"], unlisted["unlisted"]) == ("b", True)
    assert (broken["name"], broken["reason"]) == ("c", "the machine is in state error")


def test_a_cache_knows_its_password_as_servers_read_it(tmp_path: Path) -> None:
    """The example is Apache's, https://httpd.apache.org/docs/2.4/misc/password_encryptions.html."""
    assert MACHINES.htpasswd("myPassword", "myName") == "myName:{SHA}VBPuJHI7uixaa6LQGWx4s+5GKNE="
    folder = run_folder.Folder(tmp_path, user="fleet", options={})
    folder.make()
    folder.password("cache")
    secret = (tmp_path / "keys" / "cache").read_text()
    assert len(secret) == 48
    assert (tmp_path / "keys" / "cache").stat().st_mode & 0o777 == 0o600
    folder.password("cache")
    assert (tmp_path / "keys" / "cache").read_text() == secret, "a run keeps it"
    folder.forget_all()
    assert not list((tmp_path / "keys").iterdir())


def test_every_machine_type_has_a_size_and_a_name_of_its_own() -> None:
    rows = yaml.safe_load((ANSIBLE / "group_vars" / "all" / "machine_types.yml").read_text())["kiln_machine_types"]
    keys = {"provider", "type", "flavor", "cores", "memory", "disk", "gpus", "gpu", "billed"}
    assert all(row.keys() == keys for row in rows)
    assert len({(row["provider"], row["type"]) for row in rows}) == len(rows)
    assert {row["provider"] for row in rows} == {"aws", "local", "openstack", "static"}


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program that keeps a machine's builds, with its folders in a place of the test's."""
    for name in ("JOBS", "MEMORY"):
        (tmp_path / name / "a").mkdir(parents=True)
        monkeypatch.setattr(JOB, name, tmp_path / name)
    return JOB


def test_waiting_for_a_build_ends_with_the_build_and_at_once_if_none_runs(jobs: ModuleType) -> None:
    looks = iter(["running", "running", "ended"])
    jobs.begun("a")

    def ends(_: float) -> None:
        if next(looks) == "ended":
            jobs.ended("a")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs.time, "sleep", ends)
        assert jobs.main(["wait", "a", "3600"]) == 0
    assert next(looks, None) is None
    assert jobs.recall("a")["state"] == "ended"
    jobs.wait("unknown", 3600)


def test_a_wait_for_a_build_that_goes_on_ends_in_time(jobs: ModuleType) -> None:
    jobs.begun("a")
    jobs.wait("a", 0.0)
    assert jobs.recall("a")["state"] == "running"


def test_a_job_keeps_the_hash_over_what_it_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JOB, "JOBS", tmp_path / "jobs")
    monkeypatch.setattr(JOB, "MEMORY", tmp_path / "memory")
    (tmp_path / "jobs" / "config").mkdir(parents=True)
    (tmp_path / "jobs" / "config" / "environment").write_text("A=1\nKILN_FLEET_KEY=abc\n")
    JOB.begun("config")
    JOB.ended("config")
    assert JOB.recall("config")["key"] == "abc"
    assert JOB.state_of("config")["key"] == "abc"


def test_links_that_a_build_planted_are_not_written_through(
    jobs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs.shutil, "chown", lambda *_: None)
    monkeypatch.setattr(jobs.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO("A=1\n"))
    victim, folder = tmp_path / "victim", jobs.JOBS / "config"
    victim.write_text("precious")
    folder.mkdir(parents=True)
    for name in ("environment", "report.json", "log"):
        (folder / name).symlink_to(victim)
    jobs.start("config")
    jobs.begun("config")
    assert (victim.read_text(), (folder / "environment").read_text()) == ("precious", "A=1\n")
    assert not (folder / "log").is_symlink(), "which systemd opens"


@pytest.mark.parametrize(
    ("number", "fault"),
    [(errno.EROFS, os.strerror(errno.EROFS)), (errno.EIO, os.strerror(errno.EIO)), (errno.ENOSPC, ""), (0, "")],
)
@pytest.mark.parametrize("has_end", [True, False])
def test_a_build_that_failed_on_a_disk_that_cannot_be_written_names_the_fault(
    jobs: ModuleType, monkeypatch: pytest.MonkeyPatch, number: int, fault: str, *, has_end: bool
) -> None:
    """On a read-only disk systemd does not even run the command after a build's end."""
    touch = Path.touch

    def refuse(path: Path) -> None:
        if number:
            raise OSError(number, os.strerror(number))
        touch(path)

    monkeypatch.setenv("EXIT_STATUS", "17")
    monkeypatch.setattr(jobs, "active", lambda _: False)
    jobs.begun("a")
    if has_end:
        jobs.ended("a")
    monkeypatch.setattr(Path, "touch", refuse)
    state = jobs.state_of("a")
    assert (state["state"], state["disk_fault"]) == ("ended" if has_end else "lost", fault)
    assert not list(jobs.JOBS.glob(".*"))
    monkeypatch.setenv("EXIT_STATUS", "0")
    jobs.ended("a")
    assert jobs.state_of("a")["disk_fault"] == ""


def test_a_command_that_the_disk_refuses_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    program = ANSIBLE / "roles/kiln_prepare/files/root/usr/local/sbin/kiln-job"
    monkeypatch.setattr(sys, "argv", [program.name, "clear", "no/such/config"])
    with pytest.raises(SystemExit, match=r"^kiln-job: \[Errno \d+\] .*no/such/config'$"):
        runpy.run_path(str(program), run_name="__main__")


def test_a_released_host_keeps_no_program_of_kiln() -> None:
    script = yaml.safe_load((ANSIBLE / "roles/kiln_static/vars/main.yml").read_text())["kiln_static_release_script"]
    removed = {word for line in script.splitlines() if line.startswith("rm ") for word in line.split()}
    folder = ANSIBLE / "roles/kiln_prepare/files/root/usr/local/sbin"
    programs = [path.name for path in folder.iterdir() if path.is_file()]
    assert programs
    assert {f"/usr/local/sbin/{name}" for name in programs} <= removed


@pytest.mark.processes
def test_tools_whose_unpacking_was_interrupted_are_unpacked_again(tmp_path: Path) -> None:
    text = yaml.safe_load((ANSIBLE / "roles/kiln_prepare/vars/main.yml").read_text())["kiln_prepare_unpack"]
    sent = {"hash": tmp_path / "kiln-tools", "folder": (tools := tmp_path / "tools")}
    script = jinja2.Environment(autoescape=True).from_string(text).render(kiln_prepare_sent=sent)
    archives = []
    for number in range(2):
        (tmp_path / "tool").write_text(f"{number}\n" * 100_000)
        archives.append(tmp_path / f"{number}.tar.gz")
        subprocess.run(["tar", "-czf", archives[-1], "-C", tmp_path, "tool"], check=True)
    tools.mkdir()

    def unpack(data: bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["/bin/sh", "-c", script], input=data, capture_output=True, check=False)

    old, new = (archive.read_bytes() for archive in archives)
    assert unpack(old).stdout == b"CHANGED\n"
    assert unpack(old).stdout == b""
    assert unpack(new[: len(new) // 2]).returncode != 0
    assert unpack(old).stdout == b"CHANGED\n", "the hash of what was there before does not count"
    assert (tools / "tool").read_text().startswith("0")
