"""The playbooks by themselves: machines on this computer that build, AWS as moto speaks it, OpenStack as we do."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import settings as moto_settings
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import InstanceBackend
from moto.server import ThreadedMotoServer
from moto.servicequotas.exceptions import NoSuchResource
from moto.servicequotas.models import ServiceQuotasBackend
from moto.sts.responses import TokenResponse

from kiln.base import files
from kiln.base.errors import MissingTool, UsageError
from kiln.cli import main
from kiln.fleet.ansible import executor
from kiln.fleet.ansible.playbooks import PlaybookSite
from kiln.fleet.ansible.sessions import PlaybookSession
from kiln.fleet.answers import AnswerKind, classify
from kiln.fleet.protocol import ProbeWorkers, TerminateWorker, WorkerTerminated
from tests import iam_policy, shared_inputs, warm
from tests.openstack_api import IMAGES, Cloud, serve
from tests.playbook_calls import CEILING, SECRET, answer_of, changes, succeed
from tests.playbook_programs import WORKER_PROGRAMS, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kiln.fleet.protocol import Event, WorkersProbed
    from tests.playbook_calls import PlaybookResult

pytestmark = [pytest.mark.slow("playbooks run against clouds that are simulated"), pytest.mark.sampled]

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"
CPU, CUDA = "linux_64_cuda_compiler_versionNoneinterpreter3.11", "linux_64_cuda_compiler_version12.9interpreter3.11"


def inventory(run: Path, name: str) -> dict[str, Any]:
    """Return a run's variables of a worker."""
    hosts = json.loads((run / "inventory" / f"{name}.json").read_text())["kiln_machines"]["hosts"]
    known: dict[str, Any] = hosts[name]["kiln_machine"]
    return known


def containers(run: str) -> list[str]:
    argv = ["docker", "ps", "--all", "--filter", f"label=kiln-run={run}", "--format", "{{.Names}}"]
    return sorted(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())


def ssh(run: Path, machine: str, command: str) -> subprocess.CompletedProcess[str]:
    argv = ["ssh", "-F", str(run / "ssh" / f"{machine}.config"), machine, command]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[dict[str, object]]:
    """The variables of a run on this computer; its workers that a test leaves are removed at the end."""
    try:
        shared_inputs.worker_image(shared_inputs.docker_engine())
    except MissingTool as missing:
        pytest.skip(missing.what)
    run = f"t{os.getpid()}"
    yield {
        "kiln_provider": "local",
        "kiln_run": run,
        "kiln_count": 2,
        "kiln_feedstock": str(SMALL),
        "kiln_configs": [CPU, CUDA],
        "kiln_build_options": ["--container", "none"],
        "kiln_build_poll_interval": 1,
        "kiln_pip": {"PIP_EXTRA_INDEX_URL": f"https://me:{SECRET}@127.0.0.1:9/simple"},
    }
    if containers(run):
        subprocess.run(["docker", "rm", "--force", "--volumes", *containers(run)], check=True, capture_output=True)


@pytest.mark.needs("docker", "rsync", "ssh")
def test_two_machines_build_a_config_each_and_are_gone(
    play: Callable[..., PlaybookResult], local: dict[str, object], tmp_path: Path
) -> None:
    run, name = tmp_path / "run", str(local["kiln_run"])
    first, second = f"kiln-{name}-1", f"kiln-{name}-2"
    assert f"would create {second} (small)" in succeed(play("provision", check=True, **local))
    assert containers(name) == []
    assert not run.exists()
    succeed(play("provision", "prepare", "build", "collect", **local))
    assert containers(name) == [first, second]
    for check in (True, False):
        assert changes(succeed(play("provision", "prepare", "build", "collect", check=check, **local))) == 0

    for machine, config in ((first, CPU), (second, CUDA)):
        home = run / "collected" / machine / config
        verified = json.loads((home / "verified.json").read_text())
        assert {each["path"].partition("/")[2].split("-")[0] for each in verified} == {"libsmall", "small"}
        assert all(files.sha256(home / "packages" / each["path"]) == each["sha256"] for each in verified)
        assert json.loads((home / "state.json").read_text())["exit_code"] == 0
        assert "1 done" in (home / "log").read_text()

    # The host key is known, and is not the one any more that went through the machine's user data.
    known = (run / "keys" / f"{first}.known_hosts").read_text()
    born_with = (run / "keys" / f"{first}.host.pub").read_text().split()[1]
    assert born_with not in known
    assert ssh(run, first, "sudo kiln-job status").returncode == 0
    (run / "keys" / f"{first}.known_hosts").write_text(f"{first} ssh-ed25519 {born_with}\n")
    subprocess.run(
        ["ssh", "-F", run / "ssh" / f"{first}.config", "-O", "exit", first], check=False, capture_output=True
    )
    assert "Host key verification failed" in ssh(run, first, "true").stderr

    # A lease that is over ends the machine, which removes itself; nobody here asks for that.
    assert ssh(run, second, "sudo kiln-lease renew 0").returncode == 0
    until = time.monotonic() + CEILING
    while second in containers(name) and time.monotonic() < until:
        time.sleep(0.5)
    assert containers(name) == [first]

    succeed(play("down", **local))
    assert containers(name) == []
    left = [file for place in ("keys", "inventory", "ssh") for file in (run / place).iterdir()]
    assert left == []
    succeed(play("down", **local))


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """The variables of a run on AWS as simulated by a moto server on this computer."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")) as answer:
        answer.read()  # all servers of a process have one Amazon: what another test left goes
    for name, value in (("AWS_ACCESS_KEY_ID", "kiln"), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_REGION", "us-east-1")):
        monkeypatch.setenv(name, value)
    yield {
        "kiln_provider": "aws",
        "kiln_run": "one",
        "kiln_controller": "192.0.2.7",
        "kiln_aws_endpoint": f"http://{host}:{port}",
    }
    server.stop()


def ec2(told: dict[str, object]) -> Any:
    return boto3.client("ec2", endpoint_url=told["kiln_aws_endpoint"], region_name="us-east-1")


def running(client: Any) -> dict[str, dict[str, Any]]:
    """The machines of an account that cost money, by name."""
    result = [each for group in client.describe_instances()["Reservations"] for each in group["Instances"]]
    tags = [{tag["Key"]: tag["Value"] for tag in each.get("Tags", ())} for each in result]
    return {
        tag.get("Name", ""): each for tag, each in zip(tags, result, strict=True) if each["State"]["Name"] == "running"
    }


def let_in(client: Any, name: str) -> list[tuple[int, int, str]]:
    """Which ports a security group opens, and to whom: addresses, or the name of another group."""
    groups = client.describe_security_groups()["SecurityGroups"]
    names = {group["GroupId"]: group["GroupName"] for group in groups}
    (rules,) = (group["IpPermissions"] for group in groups if group["GroupName"] == name)
    return [
        (rule["FromPort"], rule["ToPort"], whom)
        for rule in rules
        for whom in (
            *(each["CidrIp"] for each in rule["IpRanges"]),
            *(names[each["GroupId"]] for each in rule["UserIdGroupPairs"]),
        )
    ]


@pytest.fixture
def restricted(moto: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A run on AWS with the how-to's policy, of which moto enforces the actions, `iam_policy.enforce` the rest."""
    client = ec2(moto)
    some = client.describe_images(Filters=[{"Name": "architecture", "Values": ["x86_64"]}])["Images"][0]["ImageId"]
    stranger = client.run_instances(ImageId=some, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    client.create_image(InstanceId=stranger, Name="debian-12-amd64-20261101-1")
    actions = [{"Effect": "Allow", "Action": each["Action"], "Resource": "*"} for each in iam_policy.STATEMENTS]
    policy = {"Version": "2012-10-17", "Statement": actions}
    iam = boto3.client("iam", endpoint_url=moto["kiln_aws_endpoint"], region_name="us-east-1")
    iam.create_user(UserName="kiln")
    iam.put_user_policy(UserName="kiln", PolicyName="fleet", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName="kiln")["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    monkeypatch.setattr(moto_settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)  # from here on every call is checked
    return {**moto, "kiln_aws_image_owner": "self", "kiln_stranger": stranger}


def require_no_spare_rights(calls: list[tuple[iam_policy.Right, ...]]) -> None:
    """Require that without any action of any statement of the policy one of the calls would be refused."""
    rights = {repr(right): right for call in calls for right in call}.values()
    for number, statement in enumerate(iam_policy.STATEMENTS):
        for action in iam_policy.values(statement["Action"]):
            left = [each for each in iam_policy.values(statement["Action"]) if each != action]
            rest = [*iam_policy.STATEMENTS]
            rest[number] = {**statement, "Action": left}
            assert not all(iam_policy.allows(rest, right) for right in rights), f"{action} of statement {number}"


def require_strangers_are_out_of_reach(client: Any, instance: str) -> None:
    """Require that a machine without the tag is neither ended nor tagged, and that other actions are denied."""
    with pytest.raises(ClientError, match="AccessDenied"):
        client.create_vpc(CidrBlock="10.0.0.0/16")
    with pytest.raises(ClientError, match="AccessDenied"):
        client.terminate_instances(InstanceIds=[instance])
    with pytest.raises(ClientError, match="AccessDenied"):
        client.create_tags(Resources=[instance], Tags=[{"Key": "kiln-fleet", "Value": "true"}])


def with_faults_of_a_zone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a zone be full, and a machine be listed late: return for how many lists it is left out."""
    run_instances, describe_instances = InstanceBackend.run_instances, InstanceBackend.describe_instances
    omissions = ["kiln-one-1"] * 2

    def run(backend: Any, *words: Any, **more: Any) -> Any:
        if backend.get_subnet(more["nics"][0]["SubnetId"]).availability_zone == "us-east-1c":
            raise EC2ClientError("InsufficientHostCapacity", "There is no capacity.")  # which the module does not retry
        return run_instances(backend, *words, **more)

    def describe(backend: Any, filters: Any = None) -> Any:
        reservations = describe_instances(backend, filters)
        late = [
            reservation
            for reservation in reservations
            if any(tag["value"] in omissions for instance in reservation.instances for tag in instance.get_tags())
        ]
        if late:
            omissions.pop()
        return [reservation for reservation in reservations if reservation not in late]

    monkeypatch.setattr(ServiceQuotasBackend, "get_service_quota", lambda *_, **__: {"Value": 64.0})
    monkeypatch.setattr(InstanceBackend, "run_instances", run)
    monkeypatch.setattr(InstanceBackend, "describe_instances", describe)
    return omissions


@pytest.mark.needs("ssh-keygen")
def test_the_policy_for_aws_admits_what_the_playbooks_do(
    play: Callable[..., PlaybookResult],
    restricted: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """One of the zones has no capacity: its machine is refused, and the others are created in theirs.

    The first lists lack one of these: it is waited for.
    """
    omissions = with_faults_of_a_zone(monkeypatch)
    calls = iam_policy.enforce(monkeypatch)
    client = boto3.Session().client("ec2", endpoint_url=restricted["kiln_aws_endpoint"], region_name="us-east-1")
    stranger = str(restricted["kiln_stranger"])
    client.describe_spot_price_history()  # with which the how-to for prices reads them
    require_strangers_are_out_of_reach(client, stranger)
    zones = {"kiln-one-1": "us-east-1b", "kiln-one-2": "us-east-1c", "kiln-one-cache": ""}
    machines = [{"name": name, "type": "compute-8", "spot": bool(zone), "zone": zone} for name, zone in zones.items()]
    done = play("provision", **restricted, kiln_machines=machines, kiln_inputs="0123456789abcdef")
    assert "1 of 3 workers were refused" in done.stdout, done.stdout[-6000:]
    assert set(running(client)) == {"kiln-one-1", "kiln-one-cache", ""}
    assert omissions == []
    assert inventory(tmp_path / "run", "kiln-one-1")["id"] == running(client)["kiln-one-1"]["InstanceId"]
    first = running(client)["kiln-one-1"]
    assert first["Placement"]["AvailabilityZone"] == "us-east-1b"
    assert {"Key": "kiln-inputs", "Value": "0123456789abcdef"} in first["Tags"]
    assert {"Key": "kiln-user", "Value": "kiln"} in first["Tags"], "the IAM user, by STS"
    refused = json.loads((tmp_path / "run" / "refused" / "kiln-one-2.json").read_text())
    assert classify(refused["reason"]).kind is AnswerKind.CAPACITY, refused
    elsewhere = {**restricted, "kiln_controller": "198.51.100.0/24"}  # without kiln_inputs: a tag changes
    done = play("quota", "admit", **elsewhere)
    assert [row["limit"] for row in answer_of(done)["quotas"]] == [64 * 1024] + [64] * 4
    succeed(play("down", **restricted))
    assert [each["InstanceId"] for each in running(client).values()] == [stranger]
    require_no_spare_rights(calls)


@pytest.mark.needs("ssh-keygen")
def test_machines_on_aws_end_themselves_and_are_given_back(
    play: Callable[..., PlaybookResult], moto: dict[str, object], tmp_path: Path
) -> None:
    client = ec2(moto)
    assert running(client) == {}
    machines = [
        {"name": "kiln-one-1", "type": "compute-8"},
        {"name": "kiln-one-2", "type": "compute-16", "spot": True},
        {"name": "kiln-one-3", "type": "gpu-t4"},
        {"name": "kiln-one-cache", "type": "compute-8"},
    ]
    expected = {"Name": "architecture", "Values": ["x86_64"]}
    some = client.describe_images(Filters=[expected])["Images"][0]["ImageId"]
    stranger = client.run_instances(ImageId=some, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    names = "debian-12-amd64-20261101-1", "with a driver (Ubuntu 22.04) 1"
    plain, driver = (client.create_image(InstanceId=stranger, Name=name)["ImageId"] for name in names)
    ours = {
        "kiln_aws_image_owner": "self",
        "kiln_aws_gpu_image_owner": "self",
        "kiln_aws_gpu_image_name": "with a driver*",
    }
    told = succeed(play("provision", check=True, **moto, **ours, kiln_machines=machines))
    assert (changes(told), "would create kiln-one-3 (gpu-t4)" in told) == (1, True)
    assert len(client.describe_security_groups()["SecurityGroups"]) == len(running(client)) == 1
    succeed(play("provision", **moto, **ours, kiln_machines=machines))
    assert changes(succeed(play("provision", **moto, **ours, kiln_machines=machines))) == 0
    succeed(play("down", check=True, **moto))

    up = running(client)
    named = {name: (up[name]["InstanceType"], up[name]["ImageId"]) for name in up if name.startswith("kiln-")}
    assert named == {
        "kiln-one-1": ("c7i.2xlarge", plain),
        "kiln-one-2": ("c7i.4xlarge", plain),
        "kiln-one-3": ("g4dn.xlarge", driver),
        "kiln-one-cache": ("c7i.2xlarge", plain),
    }
    for name in ("kiln-one-1", "kiln-one-2"):
        asked = {"InstanceId": up[name]["InstanceId"], "Attribute": "instanceInitiatedShutdownBehavior"}
        assert client.describe_instance_attribute(**asked)["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
        assert up[name]["MetadataOptions"]["HttpTokens"] == "required"
        assert inventory(tmp_path / "run", name)["id"] == up[name]["InstanceId"]
    assert let_in(client, "kiln-one") == [(22, 22, "192.0.2.7/32")]
    assert let_in(client, "kiln-one.cache") == [(8080, 8080, "kiln-one")]
    assert {name: sorted(group["GroupName"] for group in up[name]["SecurityGroups"]) for name in named} == {
        **{name: ["kiln-one"] for name in named},
        "kiln-one-cache": ["kiln-one", "kiln-one.cache"],
    }
    cache = inventory(tmp_path / "run", "kiln-one-cache")
    assert cache["private"] == up["kiln-one-cache"]["PrivateIpAddress"] != cache["address"]
    spot = client.describe_launch_template_versions(LaunchTemplateName="kiln-one-spot")["LaunchTemplateVersions"][0]
    assert spot["LaunchTemplateData"]["InstanceMarketOptions"]["MarketType"] == "spot"

    succeed(play("down", **moto))
    assert [each["InstanceId"] for each in running(client).values()] == [stranger]
    assert client.describe_launch_templates()["LaunchTemplates"] == []
    assert [group["GroupName"] for group in client.describe_security_groups()["SecurityGroups"]] == ["default"]
    written = b"".join(file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert SECRET.encode() not in written


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """A small OpenStack on this computer."""
    yield from serve(Cloud(password=SECRET))


@pytest.mark.needs("ssh-keygen")
def test_machines_on_openstack_are_brought_up_as_far_as_there_is_room_and_given_back(
    play: Callable[..., PlaybookResult], cloud: Cloud, tmp_path: Path
) -> None:
    told = {"kiln_provider": "openstack", "kiln_run": "two", "kiln_controller": "192.0.2.7", "kiln_type": "compute-8"}
    env = cloud.environment(SECRET)
    cloud.refused.add("kiln-two-2")
    cloud.zones = ("nova", "second")
    machines = [{"name": f"kiln-two-{name}", "type": "compute-8"} for name in ("1", "2", "cache")]
    machines[0]["zone"] = "SBG5"
    unknown = play("provision", env=env, **told, kiln_machines=machines)
    assert "no zone SBG5 in R1, which has nova, second; all workers of a run are in one region" in unknown.stdout
    machines[0]["zone"] = "second"
    done = play("provision", env=env, **told, kiln_machines=machines)
    assert done.returncode == 2
    assert sorted(zone for _, zone in cloud.requests) == ["nova", "second"]
    assert "1 of 3 workers were refused" in done.stdout
    refused = json.loads((tmp_path / "run" / "refused" / "kiln-two-2.json").read_text())
    assert "Quota exceeded" in refused["reason"]
    server, cache = sorted(cloud.servers.values(), key=lambda each: str(each["name"]))
    assert inventory(tmp_path / "run", "kiln-two-1")["address"] == "198.51.100.1"
    assert server["flavor"]["original_name"] == "c3-16"
    (group,) = (row for row in cloud.groups.values() if row["name"] == "kiln-two")
    let_in = [rule for rule in group["security_group_rules"] if rule["direction"] == "ingress"]
    assert [(rule["port_range_min"], rule["remote_ip_prefix"]) for rule in let_in] == [(22, "192.0.2.7/32")]
    (cached,) = (row for row in cloud.groups.values() if row["name"] == "kiln-two.cache")
    (let_in_there,) = [rule for rule in cached["security_group_rules"] if rule["direction"] == "ingress"]
    assert (let_in_there["port_range_min"], let_in_there["port_range_max"]) == (8080, 8080)
    assert (let_in_there["remote_group_id"], let_in_there["remote_ip_prefix"]) == (group["id"], None)
    assert [each["name"] for each in server["security_groups"]] == ["kiln-two"]
    assert [each["name"] for each in cache["security_groups"]] == ["kiln-two", "kiln-two.cache"]

    succeed(play("down", check=True, env=env, **told))
    wrong = play("down", env=cloud.environment("wrong"), **told)
    assert wrong.returncode == 2
    assert len(cloud.servers) == 2

    succeed(play("down", env=env, **told))
    assert cloud.servers == {}
    assert [row["name"] for row in cloud.groups.values()] == ["default"]


@pytest.mark.needs("ssh-keygen")
def test_a_worker_with_a_gpu_on_openstack_has_an_image_with_a_driver(
    play: Callable[..., PlaybookResult], cloud: Cloud
) -> None:
    told = {"kiln_provider": "openstack", "kiln_run": "two", "kiln_controller": "192.0.2.7"}
    machines = [{"name": "kiln-two-test-1", "type": "gpu-l4"}, {"name": "kiln-two-1", "type": "compute-8"}]
    told |= {"kiln_openstack_gpu_image": "with a driver"}
    succeed(play("provision", env=cloud.environment(SECRET), **told, kiln_machines=machines))
    servers = {each["name"]: (each["flavor"]["original_name"], each["image"]["id"]) for each in cloud.servers.values()}
    assert servers == {
        "kiln-two-test-1": ("l4-90", IMAGES["with a driver"]),
        "kiln-two-1": ("c3-16", IMAGES["Debian 12"]),
    }


@pytest.mark.needs("ssh-keygen")
def test_a_server_that_is_listed_late_is_waited_for_and_removed(
    play: Callable[..., PlaybookResult], cloud: Cloud, tmp_path: Path
) -> None:
    told = {"kiln_provider": "openstack", "kiln_run": "two", "kiln_controller": "192.0.2.7", "kiln_type": "compute-8"}
    env, never = cloud.environment(SECRET), 1000
    cloud.unlisted = {"kiln-two-1": 2, "kiln-two-2": never}
    done = play("provision", env=env, **told, kiln_count=2, kiln_boot_timeout=3)
    assert "1 of 2 workers were refused" in done.stdout, done.stdout[-6000:]
    assert inventory(tmp_path / "run", "kiln-two-1")["address"].startswith("198.51.100.")
    refused = json.loads((tmp_path / "run" / "refused" / "kiln-two-2.json").read_text())
    assert (refused["reason"], refused["unlisted"]) == (
        "the provider accepted the request, but does not list the machine",
        True,
    )

    cloud.unlisted = {"kiln-two-2": 1}  # the next list lacks it, as after a playbook that was killed
    succeed(play("down", env=env, **told, kiln_listing_delay=1))
    assert cloud.servers == {}


def audited(
    python: Path, run: Path, variables: dict[str, object], env: dict[str, str], name: str, identity: str
) -> tuple[WorkersProbed, Event]:
    """List a run's machines as its controller does, and terminate the one of an id; return the events."""
    more = {**variables, "kiln_run_dir": str(run)}
    site = PlaybookSite(
        folder=run, playbooks=ROOT / "ansible", python=python, variables=more, environment={**os.environ, **env}
    )
    session = PlaybookSession.from_site(site)
    probed = executor.probe_workers(session, ProbeWorkers(workers=()))
    return probed, executor.terminate_worker(session, TerminateWorker(worker=f"{name}-surplus", id=identity))


@pytest.mark.needs("ssh-keygen")
def test_machines_on_openstack_have_floating_addresses_which_are_released_with_them(
    play: Callable[..., PlaybookResult], cloud: Cloud, fleet_python: Path, tmp_path: Path
) -> None:
    """The pool has two addresses for three machines; one machine goes by itself, and one by the provider's console.

    Of one there are two for a while, as where a request is sent twice.
    """
    told = {"kiln_provider": "openstack", "kiln_run": "two", "kiln_controller": "192.0.2.7", "kiln_type": "compute-8"}
    networks = {"kiln_openstack_network": "private", "kiln_openstack_floating_network": "Ext-Net"}
    env = cloud.environment(SECRET)
    cloud.fixed, cloud.pool = "private", 2
    done = play("provision", env=env, **told, **networks, kiln_count=3)
    assert done.returncode == 2
    (refused,) = (tmp_path / "run" / "refused").glob("*.json")
    assert "No more IP addresses available" in json.loads(refused.read_text())["reason"]
    names = sorted(str(each["name"]) for each in cloud.servers.values())
    assert len(names) == 2, "a worker without an address is terminated at once"
    assert sorted(inventory(tmp_path / "run", name)["address"] for name in names) == ["203.0.113.1", "203.0.113.2"]
    notes = {f"address of {name} of run two of kiln for kiln" for name in names}
    assert {each["description"] for each in cloud.addresses.values()} == notes

    succeed(play("provision", env=env, **told, **networks, kiln_count=3, kiln_names=names))
    assert len(cloud.addresses) == 2, "a machine that has an address gets no other"

    second = cloud.double(names[1])
    variables = {**told, "kiln_poll_interval": 1}
    probed, ended = audited(fleet_python, tmp_path / "run", variables, env, names[1], second)
    assert sorted(each.name for each in probed.machines or ()) == sorted([*names, names[1]])
    assert {each.id for each in probed.machines or ()} == {*cloud.servers, second}
    assert isinstance(ended, WorkerTerminated)
    assert second not in cloud.servers
    assert sorted(str(each["name"]) for each in cloud.servers.values()) == names
    assert inventory(tmp_path / "run", names[1])["id"] in cloud.servers
    assert {each["description"] for each in cloud.addresses.values()} == notes, (
        "that of the other one of its name stays"
    )
    assert (tmp_path / "run" / "ssh" / f"{names[1]}.config").exists()

    gone = next(key for key, each in cloud.servers.items() if each["name"] == names[0])
    cloud.delete_server(gone)
    kept = {"id": "99999999-9999-9999-9999-999999999999", "description": "address of kiln-six-1 of run six of kiln"}
    cloud.addresses[kept["id"]] = {**kept, "floating_ip_address": "203.0.113.9", "port_id": None}
    succeed(play("down", env=env, **told))
    assert cloud.servers == {}
    assert list(cloud.addresses.values()) == [{**kept, "floating_ip_address": "203.0.113.9", "port_id": None}]


@pytest.mark.needs("ssh-keygen")
def test_a_server_that_has_shut_itself_down_is_replaced_and_those_of_other_runs_are_left_to_a_sweep(
    play: Callable[..., PlaybookResult], cloud: Cloud, tmp_path: Path
) -> None:
    """A server is charged for as long as it is there; these have no credential yet."""
    told = {"kiln_provider": "openstack", "kiln_controller": "192.0.2.0/24", "kiln_type": "compute-8"}
    env = cloud.environment(SECRET)
    succeed(play("provision", env=env, kiln_run="two", **told))
    (group,) = (row for row in cloud.groups.values() if row["name"] == "kiln-two")
    assert "192.0.2.0/24" in {rule["remote_ip_prefix"] for rule in group["security_group_rules"]}
    (first,) = cloud.servers
    cloud.shut_off("kiln-two-1")
    succeed(play("provision", env=env, kiln_run="two", **told))
    (second,) = cloud.servers
    assert second != first
    assert inventory(tmp_path / "run", "kiln-two-1")["id"] == second

    cloud.shut_off("kiln-two-1")
    succeed(play("provision", env=env, kiln_run="one", **told))
    succeed(play("down", env=env, kiln_run="one", **told))
    assert list(cloud.servers) == [second], "another run's server may hold packages that are not collected"
    succeed(play("down", env=env, kiln_run="two", **told))
    assert cloud.servers == {}

    succeed(play("provision", env=env, kiln_run="two", **told, kiln_count=2))
    cloud.shut_off("kiln-two-2")
    succeed(play("list", env=env, kiln_run="one", **told))
    assert len(cloud.servers) == 2, "whoever only looks changes nothing"
    succeed(play("sweep", env=env, kiln_run="one", **told, kiln_account_user="another"))
    assert (len(cloud.servers), len(cloud.groups)) == (2, 2), "they are not this user's"
    succeed(play("sweep", env=env, kiln_run="one", **told))
    assert [each["name"] for each in cloud.servers.values()] == ["kiln-two-1"], "its time is not over"

    refused = kiln_fleet(env, tmp_path, "sweep", "--all")
    assert refused.returncode == UsageError.exit_code
    assert re.search(r"kiln +two +kiln-two-1 +compute-8 +active", refused.stderr), refused.stderr
    assert "these 1 workers of 1 users" in refused.stderr
    assert len(cloud.servers) == 1
    swept = kiln_fleet(env, tmp_path, "sweep", "--all", "--yes")
    assert swept.returncode == 0, swept.stderr
    assert (cloud.servers, len(cloud.groups)) == ({}, 1)


class Answers(io.StringIO):
    """Standard input of a person, before whose answer something happens."""

    def __init__(self, text: str, *, before: Callable[[], None]) -> None:
        super().__init__(text)
        self._before = before

    def isatty(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # typeshed has it from two bases
        self._before()
        return super().readline(size)


@pytest.mark.needs("ssh-keygen")
def test_a_sweep_takes_the_workers_alone_that_were_shown_and_leaves_new_groups(
    play: Callable[..., PlaybookResult], cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = cloud.environment(SECRET)
    told = {"kiln_provider": "openstack", "kiln_run": "two", "kiln_controller": "192.0.2.7", "kiln_type": "compute-8"}
    succeed(play("provision", env=env, **told))
    (shown,) = cloud.servers.values()
    late = {**shown, "id": str(uuid.uuid4()), "name": "kiln-two-9"}
    monkeypatch.setattr("sys.stdin", Answers("y\n", before=lambda: cloud.servers.update({late["id"]: late})))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    root = shutil.copytree(SMALL, tmp_path / "feedstock")
    assert main.run(["-C", str(root), "fleet", "sweep", "--provider", "openstack", "--all"]) == 0
    assert [row["name"] for row in cloud.servers.values()] == ["kiln-two-9"]

    cloud.servers.clear()
    succeed(play("admit", env=env, kiln_run="three", kiln_provider="openstack", kiln_controller="192.0.2.7"))
    succeed(play("sweep", env=env, kiln_run="one", kiln_provider="openstack"))
    names = {"default", "kiln-two", "kiln-three"}
    assert {row["name"] for row in cloud.groups.values()} == names, "their workers may be about to be created"
    for row in cloud.groups.values():
        row["created_at"] = "2026-01-01T00:00:00Z"
    succeed(play("sweep", env=env, kiln_run="one", kiln_provider="openstack"))
    assert [row["name"] for row in cloud.groups.values()] == ["default"]


def test_a_sweep_on_aws_leaves_the_groups_and_templates_whose_expiry_is_to_come(
    play: Callable[..., PlaybookResult], moto: dict[str, object]
) -> None:
    client = ec2(moto)
    for run, expires in (("old", time.time() - 9), ("new", time.time() + CEILING)):
        tags = {"kiln-fleet": "true", "kiln-run": run, "kiln-expires": f"{expires:.0f}"}
        rows = [{"Key": key, "Value": value} for key, value in tags.items()]
        group = {"GroupName": f"kiln-{run}", "Description": f"ssh from the controller of run {run} of kiln"}
        client.create_security_group(**group, TagSpecifications=[{"ResourceType": "security-group", "Tags": rows}])
        template = {"LaunchTemplateName": f"kiln-{run}-spot", "LaunchTemplateData": {"InstanceType": "t3.micro"}}
        client.create_launch_template(**template, TagSpecifications=[{"ResourceType": "launch-template", "Tags": rows}])
    succeed(play("sweep", **moto))
    assert {each["GroupName"] for each in client.describe_security_groups()["SecurityGroups"]} == {
        "default",
        "kiln-new",
    }
    assert [each["LaunchTemplateName"] for each in client.describe_launch_templates()["LaunchTemplates"]] == [
        "kiln-new-spot"
    ]


@pytest.mark.needs("ssh-keygen")
@pytest.mark.usefixtures("fleet_python")  # a plan makes no environment to ask the project
def test_a_plan_stays_within_the_limits_of_the_project(cloud: Cloud, tmp_path: Path) -> None:
    """Without the right password it is planned all the same."""
    cloud.limits = {"maxTotalInstances": -1, "maxTotalCores": 20, "totalCoresUsed": 8}
    words = ("plan", "--all", "--type", "compute-8", "--workers", "2", "--json")
    planned = kiln_fleet(cloud.environment(SECRET), tmp_path, *words)
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert (plan["chosen"]["workers"], plan["without_quotas"]["workers"]) == (1, 2)
    assert [(row["measure"], row["limit"], row["needed"]) for row in plan["quotas"]] == [("cores", 20, 8)]
    unknown = kiln_fleet(cloud.environment("wrong"), tmp_path, *words)
    assert "quotas are not known" in unknown.stderr
    assert json.loads(unknown.stdout)["chosen"]["workers"] == 2


@pytest.mark.usefixtures("fleet_python")
def test_a_plan_asks_aws_as_the_user_of_a_profile_and_counts_controller_disks_and_fall_backs(
    moto: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The credentials are in ``~/.aws`` alone; without the file nobody is asked."""
    client = ec2(moto)
    client.create_volume(AvailabilityZone="us-east-1a", Size=700, VolumeType="gp3")
    client.create_volume(AvailabilityZone="us-east-1a", Size=900, VolumeType="gp2")
    limits = {"L-1216C47A": 20.0, "L-7A658B76": 1.0}  # vCPUs on demand, TiB of gp3; the region has no others

    def limit(_: Any, service_code: str, quota_code: str) -> dict[str, float]:
        assert service_code == ("ebs" if quota_code == "L-7A658B76" else "ec2")
        if quota_code not in limits:
            raise NoSuchResource
        return {"Value": limits[quota_code]}

    monkeypatch.setattr(ServiceQuotasBackend, "get_service_quota", limit)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / ".aws" / "credentials"
    file.parent.mkdir()
    file.write_text(f"[default]\naws_access_key_id = kiln\naws_secret_access_key = {SECRET}\n")
    env = {"HOME": str(tmp_path), "AWS_ENDPOINT_URL": str(moto["kiln_aws_endpoint"])}
    types = ("--type", "compute-8", "--fallback", "compute-16", "--workers", "4", "--optimize", "time")
    words = ("--all", "--detach", *types, "--json")
    planned = kiln_fleet(env, tmp_path, "plan", *words, provider="aws")
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert (plan["chosen"]["workers"], plan["without_quotas"]["workers"]) == (2, 4)
    rows = {row["measure"]: row for row in plan["quotas"] if row["needed"]}
    assert {name: (row["limit"], row["used"], row["reserved"], row["needed"]) for name, row in rows.items()} == {
        "disk": (1024, 700, 60, 200),
        "cores": (20, 0, 2, 16),
    }
    disks, cores, fall_back, *_ = sorted(plan["quota_warnings"], key=lambda text: "fall-back" in text)
    assert "for 4 request 1160 GB of disk" in disks
    assert "for 4 request 34 vCPUs" in cores
    assert "2 of the fall-back compute-16 (c7i.4xlarge); request" in fall_back
    file.unlink()
    unknown = kiln_fleet(env, tmp_path, "plan", *words, provider="aws")
    assert (json.loads(unknown.stdout)["quotas"], "quotas" in unknown.stderr) == ([], False)


def kiln_fleet(
    env: dict[str, str], folder: Path, action: str, *more: str, provider: str = "openstack"
) -> subprocess.CompletedProcess[str]:
    """Run an action of ``kiln fleet`` where nobody can answer a question."""
    root = Path(shutil.copytree(SMALL, folder / "feedstock", dirs_exist_ok=True))
    return warm.kiln("-C", str(root), "fleet", action, "--provider", provider, *more, env={**os.environ, **env})


@pytest.mark.needs("ssh-keygen")
def test_the_group_opens_to_the_address_that_the_controller_has_now(
    play: Callable[..., PlaybookResult], cloud: Cloud, moto: dict[str, object]
) -> None:
    told = {"kiln_provider": "openstack", "kiln_run": "two", "kiln_type": "compute-8"}
    env = cloud.environment(SECRET)
    succeed(play("provision", env=env, **told, kiln_controller="192.0.2.7"))
    succeed(play("admit", env=env, **told, kiln_controller="198.51.100.9", kiln_account_user="another"))
    (group,) = (row for row in cloud.groups.values() if row["name"] == "kiln-two")
    opened = [rule["remote_ip_prefix"] for rule in group["security_group_rules"] if rule["direction"] == "ingress"]
    assert opened == ["198.51.100.9/32"]
    assert group["description"] == "ssh from the controller of run two of kiln for another"

    client = ec2(moto)
    some = client.describe_images(Filters=[{"Name": "architecture", "Values": ["x86_64"]}])["Images"][0]["ImageId"]
    succeed(play("provision", **moto, kiln_machines=[{"name": "kiln-one-1", "type": "compute-8"}], kiln_aws_image=some))
    succeed(play("admit", **{**moto, "kiln_controller": "198.51.100.0/24"}))
    assert let_in(client, "kiln-one") == [(22, 22, "198.51.100.0/24")]
    before = client.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["kiln-one"]}])
    tags = {tag["Key"] for tag in before["SecurityGroups"][0]["Tags"]}
    assert {"kiln-run", "kiln-expires"} <= tags
    refused = play("admit", **{**moto, "kiln_controller": "<html>"})
    assert refused.returncode == 2
    assert "is not an IPv4 address" in refused.stdout
    succeed(play("down", **moto))


@pytest.mark.needs("ssh-keygen")
def test_machines_of_another_run_of_the_same_name_are_left_alone(
    play: Callable[..., PlaybookResult],
    cloud: Cloud,
    moto: dict[str, object],
    fleet_python: Path,
    tmp_path: Path,
) -> None:
    """Two people call their runs the same; each run is known by its folder and computer, too."""
    one, two = ({"kiln_run_dir": str(tmp_path / each)} for each in ("one", "two"))
    told = {"kiln_provider": "openstack", "kiln_run": "try", "kiln_type": "compute-8", "kiln_controller": "192.0.2.7"}
    env = cloud.environment(SECRET)
    succeed(play("provision", env=env, **told, **one))
    refused = play("provision", env=env, **told, **two)
    assert refused.returncode == 2
    assert "has workers (kiln-try-1) of kiln, and is not" in refused.stdout
    play("down", env=env, **told, **two)
    assert [each["name"] for each in cloud.servers.values()] == ["kiln-try-1"]
    succeed(play("down", env=env, **told, **one))
    assert cloud.servers == {}

    client = ec2(moto)
    some = client.describe_images(Filters=[{"Name": "architecture", "Values": ["x86_64"]}])["Images"][0]["ImageId"]
    more = {"kiln_machines": [{"name": "kiln-one-1", "type": "compute-8"}], "kiln_aws_image": some}
    succeed(play("provision", **moto, **more, **one))
    (first,) = running(client).values()
    tags = [{"ResourceType": "instance", "Tags": first["Tags"]}]  # as where a request is sent twice
    second = client.run_instances(ImageId=some, MinCount=1, MaxCount=1, TagSpecifications=tags)["Instances"][0]
    variables = {**moto, **more, "kiln_poll_interval": 1}
    probed, ended = audited(fleet_python, tmp_path / "one", variables, {}, "kiln-one-1", second["InstanceId"])
    assert [(each.name, each.ended) for each in probed.machines or ()] == [("kiln-one-1", False)] * 2
    assert {each.id for each in probed.machines or ()} == {first["InstanceId"], second["InstanceId"]}
    assert isinstance(ended, WorkerTerminated)
    assert [each["InstanceId"] for each in running(client).values()] == [first["InstanceId"]]
    assert "has workers (kiln-one-1)" in play("provision", **moto, **more, **two).stdout
    play("down", **moto, **two)
    assert list(running(client)) == ["kiln-one-1"]
    client.stop_instances(InstanceIds=[running(client)["kiln-one-1"]["InstanceId"]])
    succeed(play("provision", **moto, **more, **one))
    assert list(running(client)) == ["kiln-one-1"], "a stopped machine is replaced"
    succeed(play("down", **moto, **one))
    assert running(client) == {}


def test_a_failure_to_name_the_user_makes_no_workers_of_another_user(
    play: Callable[..., PlaybookResult], cloud: Cloud, moto: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure is tried again, and then is an error."""
    faults = ["ServiceUnavailable"]
    token, identity = Cloud.token, TokenResponse.get_caller_identity

    def issue(cloud: Cloud, body: dict[str, Any]) -> Any:
        if faults and faults.pop():
            return 503, {"error": {"code": 503, "title": "Service Unavailable", "message": "later"}}
        return token(cloud, body)

    def answer(response: Any) -> Any:
        if faults:
            raise RuntimeError(faults.pop())  # moto answers 500
        return identity(response)

    monkeypatch.setattr(Cloud, "token", issue)
    monkeypatch.setattr(TokenResponse, "get_caller_identity", answer)
    told = {"kiln_provider": "openstack", "kiln_run": "two", "kiln_controller": "192.0.2.7"}
    succeed(play("admit", env=cloud.environment(SECRET), **told))
    assert (faults, {row["name"] for row in cloud.groups.values()}) == ([], {"default", "kiln-two"})
    assert [row["description"] for row in cloud.groups.values() if row["name"] == "kiln-two"] == [
        "ssh from the controller of run two of kiln for kiln"
    ]

    faults[:] = ["ServiceUnavailable"] * 99
    refused = play("admit", **moto)
    assert refused.returncode == 2
    assert len(faults) < 98, "it was asked again"
    assert [each["GroupName"] for each in ec2(moto).describe_security_groups()["SecurityGroups"]] == ["default"]


def deletion(cloud: Cloud, name: str) -> str:
    """Return the path of the one request that deletes a server."""
    (key,) = (key for key, row in cloud.servers.items() if row["name"] == name)
    return f"/compute/v2.1/servers/{key}"


@pytest.mark.needs("ssh-keygen")
def test_each_worker_on_openstack_has_a_credential_that_deletes_it_and_can_do_nothing_else(
    play: Callable[..., PlaybookResult], cloud: Cloud, tmp_path: Path
) -> None:
    told = {"kiln_provider": "openstack", "kiln_run": "two", "kiln_controller": "192.0.2.7", "kiln_type": "compute-8"}
    env, keys = cloud.environment(SECRET), tmp_path / "run" / "keys"
    said = succeed(play("provision", env=env, **told, kiln_count=2))
    first, second = (next(keys.glob(f"kiln-two-{number}.*.delete-server")) for number in (1, 2))
    for file in (first, second):
        assert file.stat().st_mode & 0o777 == 0o600
        assert json.loads(file.read_text())["secret"] not in said
    one = json.loads(first.read_text())
    rule = {"service": "compute", "method": "DELETE", "path": deletion(cloud, "kiln-two-1")}
    (rules,) = (row["access_rules"] for row in cloud.credentials.values() if row["id"] == one["id"])
    assert [{key: value for key, value in item.items() if key != "id"} for item in rules] == [rule]
    assert not cloud.credentials[one["id"]]["unrestricted"]
    assert changes(succeed(play("provision", env=env, **told, kiln_count=2))) == 0
    assert json.loads(first.read_text()) == one, "a worker that exists keeps its credential"
    first.unlink()
    succeed(play("provision", env=env, **told, kiln_count=2))
    assert len(cloud.credentials) == 2, "one whose secret was lost is replaced"

    twin = {**next(row for row in cloud.servers.values() if row["name"] == "kiln-two-1"), "id": str(uuid.uuid4())}
    cloud.servers[twin["id"]] = twin  # as where a request is sent twice
    succeed(play("provision", env=env, **told, kiln_count=2))
    assert changes(succeed(play("provision", env=env, **told, kiln_count=2))) == 0
    for file in (first, third := keys / f"kiln-two-1.{twin['id']}.delete-server"):
        assert json.loads(file.read_text())["server"].rpartition("/")[2] == file.name.split(".")[1]
    third.unlink()
    del cloud.servers[twin["id"]]

    one = json.loads(first.read_text())
    secrets = {json.loads(file.read_text())["secret"] for file in (first, second)}
    written = [file for file in tmp_path.rglob("*") if file.is_file() and file not in {first, second}]
    assert not [file for file in written if any(secret.encode() in file.read_bytes() for secret in secrets)]
    succeed(play("down", env=env, **told))
    assert (cloud.servers, cloud.credentials, cloud.rules) == ({}, {}, {})
    assert not list(keys.glob("*.delete-server"))


@pytest.mark.needs("ssh-keygen")
def test_a_worker_deletes_itself_on_openstack_and_a_sweep_revokes_what_it_leaves(
    play: Callable[..., PlaybookResult],
    cloud: Cloud,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = {"kiln_provider": "openstack", "kiln_controller": "192.0.2.7", "kiln_type": "compute-8"}
    env, keys = cloud.environment(SECRET), tmp_path / "run" / "keys"
    succeed(play("provision", env=env, kiln_run="two", **told, kiln_count=2))
    first, second = (next(keys.glob(f"kiln-two-{number}.*.delete-server")) for number in (1, 2))
    program = load(f"{WORKER_PROGRAMS}/kiln-delete-server")
    monkeypatch.setattr(program, "PAUSE", 0.0)
    monkeypatch.setattr(program, "CREDENTIAL", first)
    assert program.main(["--check"]) == 0
    assert len(cloud.servers) == 2
    one, other = json.loads(first.read_text()), json.loads(second.read_text())
    first.write_text(json.dumps({**one, "server": other["server"]}))
    assert program.main([]) == 1, "another server is out of its reach"
    assert "401" in capsys.readouterr().err
    assert len(cloud.servers) == 2
    first.write_text(json.dumps(one))
    assert program.main([]) == 0
    assert [row["name"] for row in cloud.servers.values()] == ["kiln-two-2"]
    assert program.main([]) == 0, "a server that is gone is not asked for again and again"

    assert len(cloud.credentials) == 2
    succeed(play("sweep", env=env, kiln_run="one", **told))
    assert [row["name"].split()[0] for row in cloud.credentials.values()] == ["kiln-two-2"], "its server is there"
    succeed(play("down", env=env, kiln_run="two", **told))
    assert (cloud.servers, cloud.credentials, cloud.rules) == ({}, {}, {})
    monkeypatch.setattr(program, "CREDENTIAL", second)
    assert program.main([]) == 0, "without a credential there is nothing to do"


@pytest.mark.needs("ssh-keygen")
@pytest.mark.parametrize("why", ["refused", "ignored"])
def test_a_cloud_without_restricted_credentials_gives_none_and_a_note_tells_what_bounds_the_cost(
    play: Callable[..., PlaybookResult], cloud: Cloud, tmp_path: Path, why: str
) -> None:
    """Keystone refuses them to those who have such a credential themselves; an old one would give the project away."""
    told = {"kiln_provider": "openstack", "kiln_run": "two", "kiln_controller": "192.0.2.7", "kiln_type": "compute-8"}
    env = cloud.environment(SECRET)
    if why == "refused":
        cloud.without_credentials = "Using method 'application_credential' is not allowed for managing them."
    cloud.ignores_rules = why == "ignored"
    (note,) = answer_of(play("provision", env=env, **told))["notes"]
    assert ("is not allowed for managing" if why == "refused" else "ignores access rules") in note
    assert "only a sweep from another computer ends their charge" in note
    assert cloud.credentials == {}
    assert not list((tmp_path / "run" / "keys").glob("*.delete-server"))
    succeed(play("down", env=env, **told))
