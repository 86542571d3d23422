#!/usr/bin/python
"""Return the limits of an OpenStack project, and what is used of them: servers, vCPUs, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCUMENTATION = """
---
module: kiln_openstack_quota
short_description: Limits of a project's servers, vCPUs and memory
description:
  - Asks Nova for the absolute limits of the project. Nothing is changed.
options: {}
"""

# What is limited: its name, its limit and use as Nova names them, and how many of kiln's units one is.
LIMITS = (
    ("servers", "machines", "maxTotalInstances", "totalInstancesUsed", 1.0),
    ("vCPUs", "cores", "maxTotalCores", "totalCoresUsed", 1.0),
    ("memory", "memory", "maxTotalRAMSize", "totalRAMUsed", 1 / 1024),  # MB to GB
)


def quotas(absolute: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the quotas of Nova's absolute limits, of which -1 is none."""
    return [
        {
            "name": f"{name} of the project",
            "measure": measure,
            "limit": absolute[limit] * unit,
            "used": absolute.get(used, 0) * unit,
            "spot": None,
            "gpu": None,
        }
        for name, measure, limit, used, unit in LIMITS
        if absolute.get(limit, -1) >= 0
    ]


def main() -> None:
    """Run the module."""
    from ansible.module_utils.basic import AnsibleModule

    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    import openstack
    from keystoneauth1.exceptions import ClientException
    from openstack.exceptions import SDKException

    try:
        with openstack.connect() as connection:
            answer = connection.compute.get("/limits").json()
    except (SDKException, ClientException, OSError) as failure:
        module.fail_json(msg=f"Nova did not name the limits: {failure}")
    module.exit_json(changed=False, quotas=quotas(answer["limits"]["absolute"]))


if __name__ == "__main__":
    main()
