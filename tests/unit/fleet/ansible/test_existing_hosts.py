"""Existing hosts: each belongs to one run at a time."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from kiln.fleet.ansible import existing_hosts, run_folder, ssh

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the folders of shared connections out of the computer's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class FakeHosts(existing_hosts.Hosts):
    """Hosts whose notes are in a dictionary: ``setdefault`` does what a link does on a real one."""

    notes: ClassVar[dict[str, str]] = {}
    unreachable: ClassVar[dict[str, bool]] = {}

    def ask(self, host: dict[str, Any], name: str, script: str) -> str:
        address = host["address"]
        if address in self.unreachable:
            raise existing_hosts.Unreached(f"{address}: no route to host", unknown=self.unreachable[address])
        if "ln -T" in script:
            (text,) = re.findall(r"printf '%s' '(.*?)' >", script, re.DOTALL)
            return self.notes.setdefault(address, text)
        if "rm -f /etc/kiln-owner" in script:
            (owner,) = re.findall(r'"\$owner" != (\S+) ', script)
            if existing_hosts.parse_note(self.notes.get(address, "")).get("owner") == owner:
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


def test_the_sockets_of_connections_have_short_paths_whatever_the_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names have 40 characters, and 17 more while ssh makes them; macOS takes 104, and its TMPDIR has half of them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 20)))
    assert len(str(ssh.sockets(tmp_path))) + 58 < 104


@pytest.mark.processes
def test_the_sizes_of_this_machine_are_measured(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: Tesla T4 (UUID: GPU-1)'; echo 'GPU 1: Tesla T4 (UUID: GPU-2)'\n")
    smi.chmod(0o755)
    for path, gpus in ((f"{tmp_path}:/usr/bin:/bin", 2.0), ("/usr/bin:/bin", 0.0)):
        answer = subprocess.run(
            ["/bin/sh", "-c", existing_hosts.MEASURE], capture_output=True, text=True, check=True, env={"PATH": path}
        )
        sizes = existing_hosts.measured(existing_hosts.parse_note(answer.stdout))
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
    run_folder.Folder(tmp_path, user="fleet", options={}).make()
    path = f"{ssh.sockets(tmp_path)}/%C"
    config = run_folder.ssh_config({"name": "m-1", "address": "a"}, folder=tmp_path, user="fleet", options={})
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
            existing_hosts.CLAIM.format(text=f"'owner={number}'").replace("/etc/kiln-owner", str(here))
            for number in range(12)
        ]
        with ThreadPoolExecutor(len(scripts)) as pool:
            said = list(pool.map(lambda text: subprocess.check_output(["sh", "-c", text], text=True), scripts))
        assert len({text.splitlines()[-1] for text in said}) == 1
        assert sorted(existing_hosts.parse_note(text).get(existing_hosts.NEW, "") for text in said) == [""] * 11 + [
            "yes"
        ]
        assert all(re.fullmatch(r"(claimed_now=yes\n)?owner=\d+", text) for text in said)
        assert [item.name for item in tmp_path.iterdir()] == ["kiln-owner"]
