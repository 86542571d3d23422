"""The modules and filters of the playbooks, tested as plain functions."""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import yaml

from kiln.fleet.answers import AnswerKind, classify
from tests.playbook_programs import ANSIBLE, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


def load_module_utils(*names: str) -> tuple[ModuleType, ...]:
    """Load modules where Ansible puts them; without Ansible, its packages are empty."""
    package = "ansible.module_utils"
    for parent in ("ansible", package):
        if parent not in sys.modules:
            try:
                importlib.import_module(parent)
            except ImportError:
                sys.modules[parent] = types.ModuleType(parent)
    modules = tuple(load(f"module_utils/{name}.py") for name in names)
    for name, module in zip(names, modules, strict=True):
        sys.modules[f"{package}.{name}"] = module
        setattr(sys.modules[package], name, module)
    return modules


SSH, NOTE = load_module_utils("kiln_ssh", "kiln_host_note")
RUN, COLLECT = load("library/kiln_run.py"), load("library/kiln_collect.py")
MACHINES = load("filter_plugins/kiln_machines.py")
JOB = load("roles/kiln_prepare/files/root/usr/local/sbin/kiln-job")
MACHINE = {"name": "kiln-one-1", "address": "192.0.2.1", "provider": "aws"}


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the folders of shared connections out of the computer's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_ssh_trusts_one_key_and_forwards_nothing(tmp_path: Path) -> None:
    text = RUN.ssh_config(MACHINE, folder=tmp_path, user="fleet", options={"ProxyJump": "gate"})
    settings = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert settings["StrictHostKeyChecking"] == "yes"
    assert settings["UserKnownHostsFile"] == f'"{tmp_path}/keys/kiln-one-1.known_hosts"'
    assert settings["GlobalKnownHostsFile"] == "/dev/null"
    assert settings["HostKeyAlias"] == "kiln-one-1"
    assert (settings["ForwardAgent"], settings["ForwardX11"], settings["IdentityAgent"]) == ("no", "no", "none")
    assert settings["ProxyJump"] == "gate"


def test_the_first_boot_data_of_a_worker_has_its_host_key_and_a_lease() -> None:
    files = {"/usr/local/sbin/kiln-lease": "#!/bin/sh\n", "/etc/kiln-lease": "LAST=1\n"}
    text = RUN.user_data(user="fleet", run_key="ssh-ed25519 R", host_key="SECRET", host_public="PUBLIC", files=files)
    first, rest = text.split("\n", 1)
    parameters = json.loads(rest)
    assert first == "#cloud-config"
    assert parameters["ssh_keys"] == {"ed25519_private": "SECRET", "ed25519_public": "PUBLIC"}
    assert parameters["ssh_pwauth"] is False
    assert {item["path"]: item["permissions"] for item in parameters["write_files"]} == {
        "/usr/local/sbin/kiln-lease": "0755",
        "/etc/kiln-lease": "0644",
    }
    assert ["systemctl", "enable", "--now", "kiln-lease.timer"] in parameters["runcmd"]
    assert len(text) < 16384  # what EC2 takes, https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html


def report(path: str, sha256: str = "0" * 64, log: str = "/x/build_artifacts/logs/0001/config.log") -> dict[str, Any]:
    artifact = {"path": path, "sha256": sha256, "size": 3}
    return {"configs": [{"config": "config", "log": log, "packages": [{"artifact": artifact}]}]}


def test_a_report_names_packages_and_logs_below_the_folder_of_finished_ones() -> None:
    packages, logs = COLLECT.expected(report("/home/x/build_artifacts/linux-64/a-1-0.conda"), "config")
    assert packages == [{"path": "linux-64/a-1-0.conda", "sha256": "0" * 64, "size": 3}]
    assert logs == ["logs/0001/config.log"]
    assert COLLECT.expected(report("/home/x/build_artifacts/linux-64/a-1-0.conda"), "another") == ([], [])
    wheel = "wheels/cuda12.9/a-1-cp311-cp311-manylinux_2_27_x86_64.whl"
    (result,), _ = COLLECT.expected(report(f"/home/x/build_artifacts/{wheel}"), "config")
    assert result["path"] == wheel


@pytest.mark.parametrize(
    "path",
    [
        "/x/build_artifacts/linux-64/../../../.ssh/authorized_keys.conda",
        "/etc/passwd",
        "/x/build_artifacts/wheels/../../../.ssh/a.whl",
        "/x/build_artifacts/wheels/cuda../a.whl",
        "/x/build_artifacts/linux-64/a.conda\0/etc/passwd",
        "/x/build_artifacts/linux-64/-e sh.conda",
        "/x/build_artifacts/linux-64/a.conda\n",
    ],
)
def test_a_report_cannot_name_another_file(path: str) -> None:
    with pytest.raises(COLLECT.Refused, match="is not the path of a package"):
        COLLECT.expected(report(path), "config")


@pytest.mark.parametrize("log", ["/etc/shadow", "/x/build_artifacts/logs/1/../../../etc/x.log"])
def test_a_log_outside_of_the_folder_of_logs_is_not_collected(log: str) -> None:
    assert COLLECT.expected(report("/x/build_artifacts/noarch/a-1-0.conda", log=log), "config")[1] == []


def test_a_file_with_another_hash_and_a_link_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(b"abc")
    (tmp_path / "bad").write_bytes(b"abd")
    (tmp_path / "link").symlink_to(tmp_path / "good")
    digest = hashlib.sha256(b"abc").hexdigest()
    rows = [{"path": name, "sha256": digest} for name in ("good", "bad", "link", "missing")]
    assert COLLECT.wrong(rows, tmp_path) == ["bad", "link", "missing"]


@pytest.mark.parametrize("size", [-1, -(10**15), 1.5, "3", None, True])
def test_a_size_that_no_file_has_is_refused(size: object) -> None:
    lying = report("/x/build_artifacts/noarch/a-1-0.conda")
    lying["configs"][0]["packages"][0]["artifact"]["size"] = size
    with pytest.raises(COLLECT.Refused, match="cannot have"):
        COLLECT.expected(lying, "config")


@pytest.mark.processes
@pytest.mark.needs("rsync")
def test_a_worker_cannot_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an endless log the end is kept, a package that is larger than it claims is not, nor a part of it."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nwhile [ "$1" != one ]; do shift; done; shift; exec sh -c "$*"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    job, package = tmp_path / "jobs/config", tmp_path / "project/build_artifacts/linux-64/a-1-0.conda"
    for folder in (job, package.parent):
        folder.mkdir(parents=True)
    monkeypatch.setattr(COLLECT, "LONGEST", 1000)
    (job / "log").write_bytes(b"x" * 5000 + b"the end")
    (job / "state.json").write_text("{}")
    package.write_bytes(b"y" * 5000)
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    (job / "report.json").write_text(json.dumps(report(f"/x/build_artifacts/linux-64/{package.name}", digest, log="")))
    parameters = {
        "folder": str(tmp_path / "run"),
        "machine": "one",
        "config": "config",
        "home": str(tmp_path),
        "tries": 2,
    }
    (tmp_path / "run").mkdir()
    with pytest.raises(COLLECT.Refused, match="HASH MISMATCH"):
        COLLECT.collect(parameters)
    got = {path.name: path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert got == {"log": 1000, "report.json": (job / "report.json").stat().st_size, "state.json": 2}
    assert (tmp_path / "run/collected/one/config/log").read_bytes().endswith(b"the end")


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
        *MACHINES.from_aws([aws, {**aws, "state": {"name": "terminated"}}]),
        *MACHINES.from_docker([docker]),
        *MACHINES.from_openstack([server, {**server, "metadata": {}}]),
    ]
    shape = {"name": "m", "run": "r", "type": "t", "expires": 7, "account_user": "ann"}
    assert [{key: item[key] for key in shape} for item in result] == [shape] * 3
    assert [item["address"] for item in result] == ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
    assert [item["private"] for item in result] == ["10.0.0.1", "192.0.2.2", "10.0.0.3"]
    assert [item["id"] for item in result] == ["i-1", "c1", "s1"]


STATIC = load("library/kiln_static.py")


class FakeHosts(STATIC.Hosts):  # type: ignore[name-defined,misc] # a module that is loaded by its path
    """Hosts whose notes are in a dictionary: ``setdefault`` does what a link does on a real one."""

    notes: ClassVar[dict[str, str]] = {}
    unreachable: ClassVar[dict[str, bool]] = {}

    def ask(self, host: dict[str, Any], name: str, script: str) -> str:
        address = host["address"]
        if address in self.unreachable:
            raise STATIC.Unreached(f"{address}: no route to host", unknown=self.unreachable[address])
        if "ln -T" in script:
            (text,) = re.findall(r"printf '%s' '(.*?)' >", script, re.DOTALL)
            return self.notes.setdefault(address, text)
        if "rm -f /etc/kiln-owner" in script:
            (owner,) = re.findall(r'"\$owner" != (\S+) ', script)
            if NOTE.parse(self.notes.get(address, "")).get("owner") == owner:
                del self.notes[address]
            return ""
        return self.notes.get(address, "")


@pytest.fixture
def fake_hosts() -> Iterator[type[FakeHosts]]:
    yield FakeHosts
    FakeHosts.notes.clear()
    FakeHosts.unreachable.clear()


def hosts_of(kind: type[FakeHosts], folder: Path, run: str, *names: str, **more: Any) -> FakeHosts:
    (folder / "claims").mkdir(parents=True, exist_ok=True)
    machines = [{"name": name, "type": "static"} for name in names]
    hosts = [{"address": "a"}, {"address": "a2", "port": 2222}, {"address": "b", "private": "10.0.0.2"}]
    parameters = {"folder": str(folder), "run": run, "owner": run, "machines": machines, "hosts": hosts, "expires": 7}
    return kind({**parameters, "everywhere": False, "leave": "true", "user": "fleet", "ssh_options": {}, **more})


def test_an_existing_host_belongs_to_one_run_at_a_time(fake_hosts: type[FakeHosts], tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    first, refused = hosts_of(fake_hosts, one, "one", "m-1", "m-2").claim_all()
    assert ([item["name"] for item in first], refused) == (["m-1", "m-2"], [])
    assert len({item["address"] for item in first}) == 2
    others, refused = hosts_of(fake_hosts, two, "two", "n-1", "n-2").claim_all()
    assert len(others) == 1
    assert others[0]["address"] not in {item["address"] for item in first}
    assert "belongs to the run one of" in refused[0]["reason"]
    assert "sudo rm /etc/kiln-owner" in refused[0]["reason"]
    again, _ = hosts_of(fake_hosts, one, "one", "m-1", "m-2", expires=8).claim_all()
    assert {item["expires"] for item in again} == {7}, "as its note says, by which a sweep goes"
    assert {item["name"]: item["address"] for item in again} == {item["name"]: item["address"] for item in first}
    assert {item["name"] for item in hosts_of(fake_hosts, one, "one").list_all()} == {"m-1", "m-2"}
    everyone = hosts_of(fake_hosts, one, "one", everywhere=True).list_all()
    assert {item["run"] for item in everyone} == {"one", "two"}
    assert {item["expires"] for item in everyone} == {7}

    stolen = [{**first[0], "owner": "two"}]
    hosts_of(fake_hosts, two, "two", machines=stolen).release_all()
    assert len(fake_hosts.notes) == 3, "whoever is another run leaves it alone"
    left, refused = hosts_of(fake_hosts, one, "one", machines=first).release_all()
    assert (len(left), refused, len(fake_hosts.notes)) == (2, [], 1)
    assert hosts_of(fake_hosts, one, "one").list_all() == []


BIG = {"address": "big", "cores": 64, "memory": 256}


def test_a_worker_gets_a_host_of_its_type(fake_hosts: type[FakeHosts], tmp_path: Path) -> None:
    machines = [{"name": "m-1", "type": "static-64cores-256memory"}, {"name": "m-2", "type": "static"}]
    hosts = [BIG, {"address": "unknown"}]
    made, refused = hosts_of(fake_hosts, tmp_path, "one", machines=machines, hosts=hosts).claim_all()
    assert {item["name"]: (item["address"], item["type"]) for item in made} == {
        "m-1": ("big", "static-64cores-256memory"),
        "m-2": ("unknown", "static"),
    }
    more = [{"name": "m-3", "type": "static-64cores-256memory"}]
    made, refused = hosts_of(fake_hosts, tmp_path, "one", machines=more, hosts=hosts).claim_all()
    assert (made, refused[0]["type"]) == ([], "static-64cores-256memory")


def test_a_host_that_measures_less_than_a_config_needs_is_left_as_it_was(
    fake_hosts: type[FakeHosts], tmp_path: Path
) -> None:
    class Measured(fake_hosts):  # type: ignore[misc,valid-type]
        def ask(self, host: dict[str, Any], name: str, script: str) -> str:
            answer = super().ask(host, name, script)
            size = "measured_cores=8\nmeasured_memory=65536000\nmeasured_disk=x\nmeasured_gpus=1\n"
            return f"{answer}{size}" if "measured_cores" in script else answer

    def claim(**needs: float) -> list[dict[str, Any]]:
        machines = [{"name": "m-1", "type": "static", "needs": needs}]
        made, refused = hosts_of(Measured, tmp_path, "one", machines=machines, hosts=[{"address": "a"}]).claim_all()
        assert bool(made) != bool(refused)
        return [*refused, *made]

    assert claim(cores=16, memory=64, disk=100, gpus=2)[0]["reason"] == (
        "a is too small: it has 8 of 16 cores, 1 of 2 GPUs"
    )
    assert fake_hosts.notes == {}, "it is released"
    assert claim(memory=80)[0]["reason"] == "a is too small: it has 67.11 of 80 GB of memory"
    assert claim(cores=8, memory=70, gpus=1)[0]["address"] == "a", "a part of the memory is the kernel's"


@pytest.mark.processes
def test_the_sizes_of_this_machine_are_measured(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: Tesla T4 (UUID: GPU-1)'; echo 'GPU 1: Tesla T4 (UUID: GPU-2)'\n")
    smi.chmod(0o755)
    for path, gpus in ((f"{tmp_path}:/usr/bin:/bin", 2.0), ("/usr/bin:/bin", 0.0)):
        answer = subprocess.run(
            ["/bin/sh", "-c", NOTE.MEASURE], capture_output=True, text=True, check=True, env={"PATH": path}
        )
        sizes = NOTE.measured(NOTE.parse(answer.stdout))
        assert set(sizes) == {"cores", "memory", "disk", "gpus"}, answer.stdout
        assert (sizes["gpus"], sizes["cores"] >= 1, sizes["memory"] > 0.1) == (gpus, True, True)


def test_an_unreachable_host_is_skipped_unless_it_may_have_been_claimed(
    fake_hosts: type[FakeHosts], tmp_path: Path
) -> None:
    fake_hosts.unreachable.update({"a": False, "a2": False})
    (taken,), _ = hosts_of(fake_hosts, tmp_path, "one", "m-1").claim_all()
    assert (taken["address"], taken["private"], taken["state"]) == ("b", "10.0.0.2", "running")
    fake_hosts.unreachable.update({"b": False})
    (result,) = hosts_of(fake_hosts, tmp_path, "one").list_all()
    assert result["state"] == "unreachable"
    left, (refused,) = hosts_of(fake_hosts, tmp_path, "one", machines=[taken]).release_all()
    assert (left, refused["reason"]) == ([], "b: no route to host")

    fake_hosts.unreachable.update({"a": True})
    (perhaps,), _ = hosts_of(fake_hosts, tmp_path / "two", "two", "n-1").claim_all()
    assert (perhaps["address"], perhaps["state"]) == ("a", "unreachable")
    assert [item["name"] for item in hosts_of(fake_hosts, tmp_path / "two", "two").list_all()] == ["n-1"]


def test_a_claim_of_an_existing_host_opens_the_connection_that_later_queries_use(
    fake_hosts: type[FakeHosts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shared(state: str) -> tuple[str | None, str | None]:
        host = {"address": "a", "key": "/key"}
        words: list[str] = hosts_of(fake_hosts, tmp_path, "one", state=state).argv(host, "m-1", "/known")
        options = dict(word.removeprefix("-o").split("=", 1) for word in words if word.startswith("-o"))
        return options.get("ControlMaster"), options.get("ControlPath")

    assert shared("left") == (None, "none"), "there is none"
    RUN.Folder(tmp_path, user="fleet", options={}).make()
    path = f"{SSH.sockets(tmp_path)}/%C"
    config = RUN.ssh_config({"name": "m-1", "address": "a"}, folder=tmp_path, user="fleet", options={})
    assert f"    ControlPath {path}\n" in config
    assert shared("claimed") == ("yes", path), "not over an old one, which may be dead"
    assert shared("left") == shared("listed") == ("no", path)
    monkeypatch.setattr(os, "getuid", lambda: -1)
    assert shared("left") == (None, "none"), "another user's sockets could answer in the host's place"


@pytest.mark.processes
def test_of_many_claims_of_a_host_at_the_same_moment_one_succeeds(tmp_path: Path) -> None:
    """The script that takes it, by a real shell, in the place of /etc/kiln-owner a file of this test's."""
    here = tmp_path / "kiln-owner"
    for _ in range(5):
        here.unlink(missing_ok=True)
        scripts = [
            NOTE.CLAIM.format(text=f"'owner={number}'").replace("/etc/kiln-owner", str(here)) for number in range(12)
        ]
        with ThreadPoolExecutor(len(scripts)) as pool:
            said = list(pool.map(lambda text: subprocess.check_output(["sh", "-c", text], text=True), scripts))
        assert len({text.splitlines()[-1] for text in said}) == 1
        assert sorted(NOTE.parse(text).get(NOTE.NEW, "") for text in said) == [""] * 11 + ["yes"]
        assert all(re.fullmatch(r"(claimed_now=yes\n)?owner=\d+", text) for text in said)
        assert [item.name for item in tmp_path.iterdir()] == ["kiln-owner"]


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
    assert MACHINES.user_text("") == MACHINES.user_text(STATIC.account_user()), "user@host of this computer"


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


def test_a_machine_that_is_not_listed_yet_is_pending() -> None:
    def instance(name: str, state: str) -> dict[str, Any]:
        return {"instance_id": name, "state": {"name": state}}

    listed = [instance("i-1", "pending"), instance("i-2", "running"), instance("i-3", "terminated")]
    assert MACHINES.aws_pending(listed, ["i-1", "i-2", "i-3", "i-4"]) == ["i-1", "i-4"]
    assert MACHINES.aws_pending([], []) == []
    address = {"addr": "192.0.2.3", "version": 4, "OS-EXT-IPS:type": "floating"}
    servers = [
        {"name": "a", "status": "BUILD", "addresses": {}},
        {"name": "b", "status": "ACTIVE", "addresses": {}},
        {"name": "c", "status": "ERROR", "addresses": {}},
        {"name": "d", "status": "ACTIVE", "addresses": {"private": [address]}},
    ]
    assert MACHINES.openstack_pending(servers, "abcde", floating=False) == ["a", "e"]
    assert MACHINES.openstack_pending(servers, "abcde", floating=True) == ["a", "b", "e"]
    assert MACHINES.openstack_pending(servers, [], floating=True) == []


def test_an_accepted_machine_that_does_not_run_is_refused_with_a_reason() -> None:
    def item(name: str) -> dict[str, str]:
        return {"name": name, "type": "compute-8"}

    fault = "Server.InsufficientInstanceCapacity: Insufficient capacity to satisfy instance request"
    listed = [
        {"instance_id": "i-1", "state": {"name": "running"}},
        {"instance_id": "i-2", "state": {"name": "terminated"}, "state_reason": {"message": fault}},
        {"instance_id": "i-3", "state": {"name": "pending"}, "state_reason": None},
    ]
    results = [{"item": item(f"w{number}"), "instance_ids": [f"i-{number}"]} for number in range(1, 5)]
    refused = MACHINES.aws_unstarted([*results, {"item": item("w5"), "failed": True}], listed)
    assert [(row["name"], row["type"], row["unlisted"]) for row in refused] == [
        ("w2", "compute-8", False),
        ("w3", "compute-8", False),
        ("w4", "compute-8", True),
    ]
    assert refused[0]["reason"] == fault
    assert classify(refused[0]["reason"]).kind is AnswerKind.CAPACITY
    assert refused[1]["reason"] == "the machine is in state pending"
    assert "does not list the machine" in refused[2]["reason"]
    results = [{"item": item(name), "server": {"id": name, "name": name}} for name in "ab"]
    (row,) = MACHINES.openstack_unstarted(results, [{"id": "a", "status": "ACTIVE"}])
    assert (row["name"], row["unlisted"]) == ("b", True)


def test_a_worker_is_unanswered_until_it_is_recorded_or_refused_for_certain(tmp_path: Path) -> None:
    for name in ("killed", "recorded", "refused", "unlisted"):
        (tmp_path / "seed" / name).mkdir(parents=True)
        (tmp_path / "seed" / name / "user-data").write_text("#cloud-config\n")
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "recorded.json").write_text("{}")
    common = {"folder": str(tmp_path), "user": "fleet", "ssh_options": {}, "machines": [], "names": []}
    reasons: list[dict[str, object]] = [
        {"name": "refused", "reason": "quota"},
        {"name": "unlisted", "reason": "?", "unlisted": True},
    ]
    (tmp_path / "refused").mkdir()
    for reason in reasons:
        (tmp_path / "refused" / f"{reason['name']}.json").write_text(json.dumps(reason))
    assert RUN.act({**common, "state": "unanswered"}) == ["killed", "unlisted"]
    RUN.act({**common, "state": "forgotten"})
    assert RUN.act({**common, "state": "unanswered"}) == []


def test_a_worker_that_is_forgotten_already_is_no_change(tmp_path: Path) -> None:
    (tmp_path / "seed" / "f-1").mkdir(parents=True)
    forgotten = {"folder": str(tmp_path), "user": "fleet", "ssh_options": {}, "machines": [], "state": "forgotten"}
    assert [RUN.act({**forgotten, "names": ["f-1", "f-2"]}) for _ in range(2)] == [["f-1"], []]


def test_of_two_machines_of_a_name_the_recorded_one_stays_recorded(tmp_path: Path) -> None:
    common = {"folder": str(tmp_path), "user": "fleet", "ssh_options": {}, "files": {}, "lease": 60, "expires": 0}
    (tmp_path / "keys").mkdir()
    for name in ("run", "run.pub"):
        (tmp_path / "keys" / name).touch()

    def record(*ids: str) -> tuple[list[str], str]:
        machines = [{"name": "f-1", "id": identity, "address": "192.0.2.7"} for identity in ids]
        names = RUN.act({**common, "state": "recorded", "machines": machines, "names": []})
        hosts = json.loads((tmp_path / "inventory" / "f-1.json").read_text())["kiln_machines"]["hosts"]
        return names, hosts["f-1"]["kiln_machine"]["id"]

    assert record("i-1", "i-2") == (["f-1"], "i-1")
    assert record("i-2", "i-1") == record("i-0", "i-1", "i-2") == ([], "i-1")
    assert record("i-2") == (["f-1"], "i-2"), "a new machine takes the place of one that is gone"


def test_a_cache_knows_its_password_as_servers_read_it(tmp_path: Path) -> None:
    """The example is Apache's, https://httpd.apache.org/docs/2.4/misc/password_encryptions.html."""
    assert MACHINES.htpasswd("myPassword", "myName") == "myName:{SHA}VBPuJHI7uixaa6LQGWx4s+5GKNE="
    folder = RUN.Folder(tmp_path, user="fleet", options={})
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


@pytest.mark.processes
def test_a_program_of_ssh_that_is_missing_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = RUN.Folder(tmp_path / "run", user="fleet", options={})
    folder.make()
    with pytest.raises(RUN.MissingProgram, match="ssh-keygen is not installed; the package is openssh-client"):
        folder.key("run", "one")
    folder.record(MACHINE)
    folder.forget(MACHINE["name"])
    assert not list((tmp_path / "run" / "ssh").iterdir())


def test_a_workers_credentials_are_forgotten_with_it_and_no_others(tmp_path: Path) -> None:
    folder = RUN.Folder(tmp_path / "run", user="fleet", options={})
    folder.make()
    for name in ("kiln-one-1.5ff7", "kiln-one-1.60aa", "kiln-one-10.5ff8"):
        folder.write(f"keys/{name}.delete-server", "{}")
    folder.forget("kiln-one-1")
    assert [path.name for path in (tmp_path / "run" / "keys").iterdir()] == ["kiln-one-10.5ff8.delete-server"]


@pytest.mark.processes
def test_a_missing_rsync_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(COLLECT.Refused, match="rsync is not installed; the package is rsync"):
        COLLECT.fetch({"folder": str(tmp_path), "machine": "one"}, "/home", tmp_path / "target", ["log"], 1)


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
@pytest.mark.parametrize(
    ("role", "record"), [("kiln_prepare", "/etc/kiln-tools"), ("kiln_controller", "/etc/kiln-controller-tools")]
)
def test_tools_whose_unpacking_was_interrupted_are_unpacked_again(tmp_path: Path, role: str, record: str) -> None:
    text = yaml.safe_load((ANSIBLE / "roles" / role / "vars/main.yml").read_text())[f"{role}_unpack_tools"]
    hashes, tools = tmp_path / "kiln-tools", tmp_path / "tools"
    script = text.partition("{%")[0].replace(record, str(hashes)).replace("--directory /", f"-C {tools}")
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
