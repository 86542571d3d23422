"""Return the quotas of EC2 in a region, and what is used of them: vCPUs of families, on demand and spot apart; disks.

Codes are those of the console of Service Quotas: Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances, All
Standard Spot Instance Requests, Running On-Demand G and VT instances, All G and VT Spot Instance Requests; of EBS,
Storage for General Purpose SSD (gp3) volumes, in TiB. The same are in the adapter for AWS of OpenDev's nodepool.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STANDARD, GRAPHICS = re.compile(r"[acdhimrtz][0-9]"), re.compile(r"(g|vt)[0-9]")
CODES = (
    ("L-1216C47A", "Running On-Demand Standard instances", STANDARD, False),
    ("L-34B43A08", "All Standard Spot Instance Requests", STANDARD, True),
    ("L-DB2E81BA", "Running On-Demand G and VT instances", GRAPHICS, False),
    ("L-3819A6DF", "All G and VT Spot Instance Requests", GRAPHICS, True),
)
STORAGE, TIB = "L-7A658B76", 1024  # of EBS, and GB as EC2 counts them
SECONDS = 5  # for a connection, and for an answer


def used_cores(instances: Iterable[Mapping[str, Any]], family: re.Pattern[str], *, spot: bool) -> int:
    """Return the vCPUs of the instances that a quota counts; those of which EC2 does not say them are left out."""
    return sum(
        item["CpuOptions"]["CoreCount"] * item["CpuOptions"]["ThreadsPerCore"]
        for item in instances
        if item.get("CpuOptions")
        and family.match(item["InstanceType"])
        and (item.get("InstanceLifecycle") == "spot") == spot
    )


def quotas(
    limits: Mapping[str, float], instances: Iterable[Mapping[str, Any]], volumes: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the quotas whose limits are known, by their codes."""
    counted = list(instances)
    storage = {
        "name": f"Storage for General Purpose SSD (gp3) volumes ({STORAGE})",
        "measure": "disk",
        "limit": limits.get(STORAGE, 0) * TIB,
        "used": sum(item["Size"] for item in volumes),
        "spot": None,
        "gpu": None,
    }
    return [storage] * (STORAGE in limits) + [
        {
            "name": f"{name} ({code})",
            "measure": "cores",
            "limit": limits[code],
            "used": used_cores(counted, family, spot=spot),
            "spot": spot,
            "gpu": family is GRAPHICS,
        }
        for code, name, family, spot in CODES
        if code in limits
    ]


def known_limits(service: Any) -> dict[str, float]:
    """Return the limits by their codes, without those of quotas that the region does not have."""
    limits: dict[str, float] = {}
    for product, code in (*(("ec2", code) for code, *_ in CODES), ("ebs", STORAGE)):
        with contextlib.suppress(service.exceptions.NoSuchResourceException):
            limits[code] = service.get_service_quota(ServiceCode=product, QuotaCode=code)["Quota"]["Value"]
    return limits


def result(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a task; the action kiln_run calls it with its validated parameters."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    brief = Config(connect_timeout=SECONDS, read_timeout=SECONDS, retries={"total_max_attempts": 2})
    place = {"region_name": parameters["region"], "endpoint_url": parameters["endpoint"] or None}
    try:
        limits = known_limits(boto3.client("service-quotas", config=brief, **place))
        ec2 = boto3.client("ec2", config=brief, **place)
        pages = ec2.get_paginator("describe_volumes")
        kinds = [{"Name": "volume-type", "Values": ["gp3"]}]
        volumes = [item for page in pages.paginate(Filters=kinds) for item in page["Volumes"]]
        pages = ec2.get_paginator("describe_instances")
        states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        instances = [
            item
            for page in pages.paginate(Filters=states)
            for reservation in page["Reservations"]
            for item in reservation["Instances"]
        ]
    except (BotoCoreError, ClientError) as failure:
        return {"failed": True, "msg": str(failure)}
    return {"changed": False, "quotas": quotas(limits, instances, volumes)}
