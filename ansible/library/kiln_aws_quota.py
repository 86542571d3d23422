#!/usr/bin/python
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

DOCUMENTATION = """
---
module: kiln_aws_quota
short_description: Quotas of EC2's vCPUs and EBS's gp3 volumes
description:
  - Asks Service Quotas for the limits, and EC2 for the instances and volumes that count. Nothing is changed.
options:
  region:
    description: The region.
    type: str
    required: true
  endpoint:
    description: The endpoint of another AWS than Amazon's.
    type: str
    default: ""
"""

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


def main() -> None:
    """Run the module."""
    from ansible.module_utils.basic import AnsibleModule

    module = AnsibleModule(
        argument_spec={"region": {"required": True}, "endpoint": {"default": ""}}, supports_check_mode=True
    )
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    brief = Config(connect_timeout=SECONDS, read_timeout=SECONDS, retries={"total_max_attempts": 2})
    place = {"region_name": module.params["region"], "endpoint_url": module.params["endpoint"] or None}
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
        module.fail_json(msg=str(failure))
    module.exit_json(changed=False, quotas=quotas(limits, instances, volumes))


if __name__ == "__main__":
    main()
