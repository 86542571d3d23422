#!/usr/bin/python
"""Return the user of OpenStack's credentials: Keystone's token names it, whoever may ask for nothing else."""

from __future__ import annotations

from typing import Any

DOCUMENTATION = """
---
module: kiln_openstack_user
short_description: The user of the credentials in the environment
description:
  - Asks Keystone for a token, and returns the name of its user. Nothing is changed.
options: {}
"""


def user_of(connection: Any) -> str:
    """Return the name of the user of a connection of openstacksdk, or its id if the token has no name."""
    access = connection.config.get_auth().get_access(connection.session)
    return str(access.username or access.user_id or "")


def main() -> None:
    """Run the module."""
    from ansible.module_utils.basic import AnsibleModule

    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    import openstack
    from keystoneauth1.exceptions import ClientException
    from openstack.exceptions import SDKException

    try:
        with openstack.connect() as connection:
            user = user_of(connection)
    except (SDKException, ClientException, OSError) as failure:
        module.fail_json(msg=f"Keystone did not name the user: {failure}")
    module.exit_json(changed=False, user=user)


if __name__ == "__main__":
    main()
