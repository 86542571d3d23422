"""Whole runs on clouds that are simulated: their machines are containers, which boot from their user data."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import boto3
import pytest
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import Instance, InstanceBackend
from moto.server import ThreadedMotoServer

from kiln.base.errors import UnsupportedPython
from kiln.fleet.model import JobState
from tests.integration.fleet.helpers import (
    CONFIGS,
    HELD,
    PLANTED,
    ROOT,
    assert_given_back,
    assert_whole,
    building,
    docker,
    hold,
    ledgered,
    let_go,
    words,
)
from tests.openstack_api import Answer, Cloud, Row, serve
from tests.playbook_programs import load
from tests.trials.fault_kinds import gateway
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.slow("a whole run of the fleet: machines are made, prepared, built on and removed"),
    pytest.mark.trial,
    pytest.mark.needs("docker", "ssh", "ssh-keygen", "rsync"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason=f"{UnsupportedPython.__name__}: Ansible needs Python 3.11"),
]
MACHINES = load("filter_plugins/kiln_machines.py")
IMAGE = "localhost/kiln-worker:bookworm"


@dataclass
class Machines:
    """The machines of a cloud; ``on_boot`` is called once, when the first one is there and nobody knows of it yet."""

    folder: Path
    on_boot: Callable[[], None] | None = None
    booted: list[str] = field(default_factory=list)

    def boot(self, name: str, tags: dict[str, str], user_data: str) -> str:
        """Start a machine; returns its address."""
        seed = self.folder / f"seed-{len(self.booted)}"
        seed.mkdir()
        (seed / "user-data").write_bytes(base64.b64decode(user_data))
        (seed / "meta-data").write_text(json.dumps({"instance-id": name, "local-hostname": name}))
        docker("run", *MACHINES.docker_run({"name": name}, tags, str(seed), ""), IMAGE)
        self.booted.append(name)
        if call := self.on_boot:
            self.on_boot = None
            call()
        return docker("inspect", "--format", "{{.NetworkSettings.Networks.bridge.IPAddress}}", name).strip()

    @staticmethod
    def remove(name: str) -> None:
        """End a machine, which may have ended itself."""
        subprocess.run(("docker", "rm", "--force", "--volumes", name), capture_output=True, check=False)


@dataclass
class ContainerCloud(Cloud):
    """An OpenStack whose servers are containers; it does not answer the first ``throttled`` lists of them.

    The second server of a run is refused once: the project's quota is used up.
    """

    machines: Machines | None = None
    throttled: int = 4
    addressed: dict[str, str] = field(default_factory=dict)

    def create_server(self, body: Row) -> Answer:
        asked = body["server"]
        if asked["name"].endswith("-2") and not self.refused:
            self.refused.add(asked["name"])
            answer = super().create_server(body)
            self.refused = {"nobody"}
            return answer
        answer = super().create_server(body)
        assert self.machines is not None
        address = self.machines.boot(asked["name"], asked["metadata"], asked["user_data"])
        self.addressed[answer[1]["server"]["id"]] = address
        return answer

    def address_of(self, row: Row) -> str:
        return self.addressed[row["id"]]

    def list_servers(self, query: Row) -> Answer:
        if self.throttled:
            self.throttled -= 1
            return 503, {"error": {"code": 503, "message": "The service is temporarily unavailable."}}
        return super().list_servers(query)

    def delete_server(self, key: str) -> Answer:
        if key in self.servers:
            Machines.remove(self.servers[key]["name"])
        return super().delete_server(key)


@pytest.fixture
def machines(tmp_path: Path, workers: None) -> Machines:
    return Machines(tmp_path)


@pytest.fixture
def openstack(machines: Machines) -> Iterator[ContainerCloud]:
    """An OpenStack that this computer and its containers reach."""
    for cloud in serve(ContainerCloud(password=PLANTED, machines=machines), host=gateway()):
        assert isinstance(cloud, ContainerCloud)
        yield cloud


def assert_gone_on_with(root: Path, machines: Machines, provider: str, told: Row, environment: dict[str, str]) -> None:
    """Kill a run's controller when its first machine is there, resume the run by its name alone, and see it through."""
    hold(root)
    file = root.parent / "told.json"
    file.write_text(json.dumps({"kiln_controller": gateway(), **told}))
    options = ("--all", "--workers", "2", "--type", "compute-8", "--container", "none", "--poll", "1s")
    log = root.parent / "said.txt"
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "SSL_CERT_FILE") if name in os.environ}
    with log.open("a") as output:

        def start(action: str, *more: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                words(root, action, *more), cwd=ROOT, env={**kept, **environment}, stdout=output, stderr=output
            )

        process = start("run", "--provider", provider, "--vars", str(file), *options)
        machines.on_boot = process.kill
        assert process.wait(900) == -9, log.read_text()
        (run,) = ledgered(root)
        assert (run.finished, len(machines.booted)) == (None, 1)
        with start("resume", run.id) as process:
            try:
                until(lambda: len(building(root)) == 2, "two builds run", process)
                (root / HELD).unlink()
                for worker in building(root).values():
                    let_go(worker)
                assert process.wait(900) == 0, log.read_text()
            finally:
                process.kill()
    (run,) = ledgered(root)
    assert {(job.attempt, job.state) for job in run.jobs} == {(1, JobState.COLLECTED)}
    assert sorted(machines.booted) == sorted({job.worker for job in run.jobs}), "no machine was made twice"
    assert_whole(root, CONFIGS)
    assert_given_back(root)
    said = log.read_text()
    assert "-2 was refused: " in said
    assert PLANTED not in said


def test_a_run_on_openstack_is_gone_on_with_past_a_kill_a_quota_and_an_api_that_does_not_answer(
    small: Path, openstack: ContainerCloud, machines: Machines
) -> None:
    assert_gone_on_with(small, machines, "openstack", {}, openstack.environment(PLANTED))
    assert openstack.throttled == 0
    assert openstack.servers == openstack.credentials == {}
    assert [row["name"] for row in openstack.groups.values()] == ["default"]


@pytest.fixture
def aws(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An AWS whose instances are containers; its first lists are throttled, and once there is no capacity."""
    run_instances, describe, terminate = (
        InstanceBackend.run_instances,
        InstanceBackend.describe_instances,
        Instance.terminate,
    )
    faults = {"throttled": 8, "full": 1}

    def run(backend: Any, *args: Any, **more: Any) -> Any:
        tags = more["tags"]["instance"]
        if tags["Name"].endswith("-2") and faults["full"]:
            faults["full"] -= 1
            raise EC2ClientError("InsufficientHostCapacity", "There is no capacity.")  # which the module does not retry
        made = run_instances(backend, *args, **more)
        (instance,) = made.instances
        instance.nics[0].public_ip = machines.boot(tags["Name"], tags, str(instance.user_data))
        return made

    def listed(backend: Any, filters: Any = None) -> Any:
        if faults["throttled"]:
            faults["throttled"] -= 1
            raise EC2ClientError("RequestLimitExceeded", "Request limit exceeded.")
        return describe(backend, filters)

    def end(instance: Any) -> Any:
        Machines.remove(next(tag["value"] for tag in instance.get_tags() if tag["key"] == "Name"))
        return terminate(instance)

    monkeypatch.setattr(InstanceBackend, "run_instances", run)
    monkeypatch.setattr(InstanceBackend, "describe_instances", listed)
    monkeypatch.setattr(Instance, "terminate", end)
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")) as answer:
        answer.read()  # all servers of a process have one Amazon
    yield f"http://{host}:{port}"
    server.stop()


def test_a_run_on_aws_is_gone_on_with_past_a_kill_a_full_zone_and_throttled_requests(
    small: Path, aws: str, machines: Machines
) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "AKIA0123", "AWS_SECRET_ACCESS_KEY": PLANTED, "AWS_REGION": "us-east-1"}
    client = boto3.client(
        "ec2", endpoint_url=aws, region_name="us-east-1", aws_access_key_id="AKIA0123", aws_secret_access_key=PLANTED
    )
    image = client.describe_images(Filters=[{"Name": "architecture", "Values": ["x86_64"]}])["Images"][0]["ImageId"]
    told = {"kiln_aws_endpoint": aws, "kiln_aws_image": image}
    assert_gone_on_with(small, machines, "aws", told, keys)
    states = [
        each["State"]["Name"] for group in client.describe_instances()["Reservations"] for each in group["Instances"]
    ]
    assert set(states) == {"terminated"}
    assert [group["GroupName"] for group in client.describe_security_groups()["SecurityGroups"]] == ["default"]
