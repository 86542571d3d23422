"""The playbooks' own modules and filters: what they write and what they refuse, as plain functions."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from types import ModuleType

ANSIBLE = Path(__file__).parents[2] / "ansible"


def load(name: str) -> ModuleType:
    """A module of the playbooks', which are no package of kiln's."""
    file = ANSIBLE / f"{name}.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUN, COLLECT = load("library/kiln_run"), load("library/kiln_collect")
MACHINES = load("filter_plugins/kiln_machines")
MACHINE = {"name": "kiln-one-1", "address": "192.0.2.1", "provider": "aws"}


def test_ssh_trusts_one_key_and_forwards_nothing(tmp_path: Path) -> None:
    text = RUN.ssh_config(MACHINE, folder=tmp_path, user="fleet", options={"ProxyJump": "gate"})
    settings = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert settings["StrictHostKeyChecking"] == "yes"
    assert settings["UserKnownHostsFile"] == f'"{tmp_path}/keys/kiln-one-1.known_hosts"'
    assert settings["GlobalKnownHostsFile"] == "/dev/null"
    assert settings["HostKeyAlias"] == "kiln-one-1"
    assert (settings["ForwardAgent"], settings["ForwardX11"], settings["IdentityAgent"]) == ("no", "no", "none")
    assert settings["ProxyJump"] == "gate"


def test_a_machine_is_born_with_its_host_key_and_a_lease() -> None:
    files = {"/usr/local/sbin/kiln-lease": "#!/bin/sh\n", "/etc/kiln-lease": "LAST=1\n"}
    text = RUN.user_data(user="fleet", run_key="ssh-ed25519 R", host_key="SECRET", host_public="PUBLIC", files=files)
    first, rest = text.split("\n", 1)
    told = json.loads(rest)
    assert first == "#cloud-config"
    assert told["ssh_keys"] == {"ed25519_private": "SECRET", "ed25519_public": "PUBLIC"}
    assert told["ssh_pwauth"] is False
    assert {each["path"]: each["permissions"] for each in told["write_files"]} == {
        "/usr/local/sbin/kiln-lease": "0755",
        "/etc/kiln-lease": "0644",
    }
    assert ["systemctl", "enable", "--now", "kiln-lease.timer"] in told["runcmd"]
    assert len(text) < 16384  # what EC2 takes, https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html


def report(path: str, sha256: str = "0" * 64, log: str = "/x/build_artifacts/logs/0001/cell.log") -> dict[str, Any]:
    artifact = {"path": path, "sha256": sha256, "size": 3}
    return {"cells": [{"config": "cell", "log": log, "packages": [{"artifact": artifact}]}]}


def test_a_report_names_packages_and_logs_below_the_folder_of_finished_ones() -> None:
    packages, logs = COLLECT.expected(report("/home/x/build_artifacts/linux-64/a-1-0.conda"), "cell")
    assert packages == [{"path": "linux-64/a-1-0.conda", "sha256": "0" * 64, "size": 3}]
    assert logs == ["logs/0001/cell.log"]
    assert COLLECT.expected(report("/home/x/build_artifacts/linux-64/a-1-0.conda"), "another") == ([], [])
    wheel = "wheels/cuda12.9/a-1-cp311-cp311-manylinux_2_27_x86_64.whl"
    (found,), _ = COLLECT.expected(report(f"/home/x/build_artifacts/{wheel}"), "cell")
    assert found["path"] == wheel


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
    with pytest.raises(COLLECT.Refused, match="is no path of a package"):
        COLLECT.expected(report(path), "cell")


@pytest.mark.parametrize("log", ["/etc/shadow", "/x/build_artifacts/logs/1/../../../etc/x.log"])
def test_a_log_elsewhere_is_left_where_it_is(log: str) -> None:
    assert COLLECT.expected(report("/x/build_artifacts/noarch/a-1-0.conda", log=log), "cell")[1] == []


def test_what_has_another_hash_or_is_a_link_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(b"abc")
    (tmp_path / "bad").write_bytes(b"abd")
    (tmp_path / "link").symlink_to(tmp_path / "good")
    digest = hashlib.sha256(b"abc").hexdigest()
    rows = [{"path": name, "sha256": digest} for name in ("good", "bad", "link", "missing")]
    assert COLLECT.wrong(rows, tmp_path) == ["bad", "link", "missing"]


def test_machines_of_every_provider_have_one_shape() -> None:
    tags = {"kiln-fleet": "true", "kiln-machine": "m", "kiln-run": "r", "kiln-type": "t", "kiln-expires": "7"}
    aws = {
        "tags": tags,
        "instance_id": "i-1",
        "instance_type": "c5.large",
        "state": {"name": "running"},
        "public_ip_address": "192.0.2.1",
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
    found = [
        *MACHINES.from_aws([aws, {**aws, "state": {"name": "terminated"}}]),
        *MACHINES.from_docker([docker]),
        *MACHINES.from_openstack([server, {**server, "metadata": {}}]),
    ]
    shape = {"name": "m", "run": "r", "type": "t", "expires": 7}
    assert [{key: each[key] for key in shape} for each in found] == [shape] * 3
    assert [each["address"] for each in found] == ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
    assert [each["id"] for each in found] == ["i-1", "c1", "s1"]


def test_every_flavour_has_a_price_with_its_source_and_date() -> None:
    rows = yaml.safe_load((ANSIBLE / "group_vars" / "all" / "flavours.yml").read_text())["kiln_flavours"]
    keys = {"provider", "type", "flavour", "cores", "memory", "disk", "gpus", "gpu", "hourly", "spot_hourly", "billed"}
    assert all(row.keys() == keys | {"currency", "region", "source", "date"} for row in rows)
    assert all(row["source"] and row["date"] for row in rows)
    assert len({(row["provider"], row["type"]) for row in rows}) == len(rows)
    assert {row["provider"] for row in rows} == {"aws", "local", "openstack", "static"}
