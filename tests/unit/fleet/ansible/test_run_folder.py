"""The folder of a run: keys, first-boot data, and the workers that are recorded there."""

from __future__ import annotations

import json
import tempfile
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import MissingTool
from kiln.fleet.ansible import run_folder

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = {"name": "kiln-one-1", "address": "192.0.2.1", "provider": "aws"}


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the folders of shared connections out of the computer's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_ssh_trusts_one_key_and_forwards_nothing(tmp_path: Path) -> None:
    text = run_folder.ssh_config(MACHINE, folder=tmp_path, user="fleet", options={"ProxyJump": "gate"})
    settings = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert settings["StrictHostKeyChecking"] == "yes"
    assert settings["UserKnownHostsFile"] == f'"{tmp_path}/keys/kiln-one-1.known_hosts"'
    assert settings["GlobalKnownHostsFile"] == "/dev/null"
    assert settings["HostKeyAlias"] == "kiln-one-1"
    assert (settings["ForwardAgent"], settings["ForwardX11"], settings["IdentityAgent"]) == ("no", "no", "none")
    assert settings["ProxyJump"] == "gate"


def test_the_first_boot_data_of_a_worker_has_its_host_key_and_a_lease() -> None:
    files = {"/usr/local/sbin/kiln-lease": "#!/bin/sh\n", "/etc/kiln-lease": "LAST=1\n"}
    text = run_folder.user_data(
        user="fleet", run_key="ssh-ed25519 R", host_key="SECRET", host_public="PUBLIC", files=files
    )
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
    assert run_folder.act({**common, "state": "unanswered"}) == ["killed", "unlisted"]
    run_folder.act({**common, "state": "forgotten"})
    assert run_folder.act({**common, "state": "unanswered"}) == []


def test_a_worker_that_is_forgotten_already_is_no_change(tmp_path: Path) -> None:
    (tmp_path / "seed" / "f-1").mkdir(parents=True)
    forgotten = {"folder": str(tmp_path), "user": "fleet", "ssh_options": {}, "machines": [], "state": "forgotten"}
    assert [run_folder.act({**forgotten, "names": ["f-1", "f-2"]}) for _ in range(2)] == [["f-1"], []]


def test_of_two_machines_of_a_name_the_recorded_one_stays_recorded(tmp_path: Path) -> None:
    common = {"folder": str(tmp_path), "user": "fleet", "ssh_options": {}, "files": {}, "lease": 60, "expires": 0}
    (tmp_path / "keys").mkdir()
    for name in ("run", "run.pub"):
        (tmp_path / "keys" / name).touch()

    def record(*ids: str) -> tuple[list[str], str]:
        machines = [{"name": "f-1", "id": identity, "address": "192.0.2.7"} for identity in ids]
        names = run_folder.act({**common, "state": "recorded", "machines": machines, "names": []})
        hosts = json.loads((tmp_path / "inventory" / "f-1.json").read_text())["kiln_machines"]["hosts"]
        return names, hosts["f-1"]["kiln_machine"]["id"]

    assert record("i-1", "i-2") == (["f-1"], "i-1")
    assert record("i-2", "i-1") == record("i-0", "i-1", "i-2") == ([], "i-1")
    assert record("i-2") == (["f-1"], "i-2"), "a new machine takes the place of one that is gone"


@pytest.mark.processes
def test_a_program_of_ssh_that_is_missing_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = run_folder.Folder(tmp_path / "run", user="fleet", options={})
    folder.make()
    with pytest.raises(MissingTool, match="'ssh-keygen' is not on this machine"):
        folder.key("run", "one")
    folder.record(MACHINE)
    folder.forget(MACHINE["name"])
    assert not list((tmp_path / "run" / "ssh").iterdir())


def test_a_workers_credentials_are_forgotten_with_it_and_no_others(tmp_path: Path) -> None:
    folder = run_folder.Folder(tmp_path / "run", user="fleet", options={})
    folder.make()
    for name in ("kiln-one-1.5ff7", "kiln-one-1.60aa", "kiln-one-10.5ff8"):
        folder.write(f"keys/{name}.delete-server", "{}")
    folder.forget("kiln-one-1")
    assert [path.name for path in (tmp_path / "run" / "keys").iterdir()] == ["kiln-one-10.5ff8.delete-server"]
