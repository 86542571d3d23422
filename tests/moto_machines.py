"""Moto's EC2 whose instances are containers of this computer, which boot from their user data as machines do."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock
from urllib.request import Request, urlopen

import boto3
from flask import has_request_context, request
from moto.ec2.models.instances import InstanceBackend
from moto.server import ThreadedMotoServer

from tests.cloud_machines import LABEL, MachineCall, address_of, boot, gateway, remove_all, remove_soon, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

REGION = "us-east-1"


class MotoMachines:
    """Moto's EC2 with machines; ``on_boot`` gets the name of each container.

    Its instances have the addresses of their containers. One whose container has shut itself down is terminated, as
    EC2's are that were created with that behavior; moto does not check who asks for what.
    """

    provider = "aws"
    last_action = "shut down"  # which terminates an instance

    def __init__(self, url: str, folder: Path, on_boot: Callable[[str], None]) -> None:
        self.url = url
        self.folder = folder
        self.on_boot = on_boot
        self.calls: list[MachineCall] = []
        self.instances: dict[str, Any] = {}
        self._lock = threading.Lock()  # moto answers several requests at a time
        self.client = boto3.client(
            "ec2", endpoint_url=url, region_name=REGION, aws_access_key_id="kiln", aws_secret_access_key="kiln"
        )
        images = self.client.describe_images(Filters=[{"Name": "architecture", "Values": ["x86_64"]}])["Images"]
        self.variables: dict[str, object] = {
            "kiln_aws_endpoint": url,
            "kiln_aws_image": images[0]["ImageId"],
            "kiln_metadata_address": "",
        }

    @property
    def label(self) -> str:
        """The label of the containers."""
        return f"{LABEL}={self.url.rpartition(':')[2]}"

    @property
    def names(self) -> list[str]:
        """The names of the instances that run."""
        self.notice_ends()
        return sorted(name_of(instance) for instance in self.instances.values() if instance.is_running())

    def container(self, name: str) -> str:
        """Return the container of an instance."""
        return str(self._instance(name).id)

    def address(self, name: str) -> str:
        """Return the address of an instance."""
        return str(self._instance(name).public_ip)

    def _instance(self, name: str) -> Any:
        (instance,) = (each for each in self.instances.values() if name_of(each) == name and each.is_running())
        return instance

    def environment(self, password: str) -> dict[str, str]:
        """Return the variables by which clients find the cloud."""
        return {"AWS_ACCESS_KEY_ID": "AKIATRIAL0452", "AWS_SECRET_ACCESS_KEY": password, "AWS_REGION": REGION}

    def delete(self, name: str) -> None:
        """Terminate an instance, as somebody does by hand."""
        self.client.terminate_instances(InstanceIds=[self._instance(name).id])

    def ssh_ranges(self, group: str) -> set[str]:
        """Return the ranges of addresses that a security group admits to ssh."""
        groups = self.client.describe_security_groups()["SecurityGroups"]
        (rules,) = (row["IpPermissions"] for row in groups if row["GroupName"] == group)
        return {each["CidrIp"] for rule in rules if rule["FromPort"] == 22 for each in rule["IpRanges"]}

    def leftovers(self) -> list[str]:
        """Return what a run has left."""
        groups = [row["GroupName"] for row in self.client.describe_security_groups()["SecurityGroups"]]
        return [*self.names, *(name for name in groups if name != "default")]

    def notice_ends(self) -> None:
        """Terminate the instances whose containers have shut themselves down."""
        with self._lock:
            names = running(self.label)
            for instance in self.instances.values():
                if instance.is_running() and instance.id not in names:
                    assert instance.instance_initiated_shutdown_behavior == "terminate"
                    self.calls.append(MachineCall("shut down", name_of(instance), str(instance.public_ip), alone=True))
                    instance.terminate()

    def created(self, instance: Any) -> None:
        """Boot the machine of a new instance."""
        self.calls.append(MachineCall("created", name_of(instance), caller()))
        user_data = instance.user_data.decode()
        boot(instance.id, label=self.label, seed=self.folder / instance.id, user_data=user_data)
        instance.nics[0].public_ip = address_of(instance.id)
        with self._lock:
            self.instances[instance.id] = instance
        self.on_boot(instance.id)

    def deleted(self, key: str) -> None:
        """End the machine of an instance that was terminated."""
        if (instance := self.instances.get(key)) is not None:
            self.calls.append(MachineCall("deleted", name_of(instance), caller()))
            remove_soon(key)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Let moto's instances be machines during the block."""
        backend = InstanceBackend
        run, terminate, describe = backend.run_instances, backend.terminate_instances, backend.describe_instances

        def run_instances(each: Any, *words: Any, **more: Any) -> Any:
            reservation = run(each, *words, **more)
            for instance in reservation.instances:
                self.created(instance)
            return reservation

        def terminate_instances(each: Any, instance_ids: list[str]) -> Any:
            self.notice_ends()
            ids = [key for key in instance_ids if key in self.instances and self.instances[key].is_running()]
            result = terminate(each, instance_ids)
            for key in ids:
                self.deleted(key)
            return result

        def describe_instances(each: Any, filters: Any = None) -> Any:
            self.notice_ends()
            return describe(each, filters)

        with (
            mock.patch.object(backend, "run_instances", run_instances),
            mock.patch.object(backend, "terminate_instances", terminate_instances),
            mock.patch.object(backend, "describe_instances", describe_instances),
        ):
            yield


def name_of(instance: Any) -> str:
    """Return the name of an instance."""
    return next((str(tag["value"]) for tag in instance.get_tags() if tag["key"] == "Name"), "")


def caller() -> str:
    """Return the address of who makes the present request."""
    return str(request.remote_addr) if has_request_context() else ""


@contextmanager
def moto_machines(folder: Path, *, on_boot: Callable[[str], None]) -> Iterator[MotoMachines]:
    """Yield moto's EC2 with machines; its containers are removed at the end."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # not a line for each request
    server = ThreadedMotoServer(ip_address=gateway(), port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")) as answer:
        answer.read()
    cloud = MotoMachines(f"http://{host}:{port}", folder, on_boot)
    try:
        with cloud.attached():
            yield cloud
    finally:
        remove_all(cloud.label)
        server.stop()
