"""The action kiln_run: what the playbooks do by modules of kiln.fleet.ansible, in their own process.

A module would be packed, and compiled anew with all of Ansible's code that it imports, in a process of its own: 0.4 s
of processor time for each task, next to which its work is little.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

sys.path.append(str(Path(__file__).parents[2]))  # of kiln, for an Ansible that is in another environment
STATES = {
    "run_folder": ("seeded", "recorded", "refused", "unanswered", "forgotten"),
    "existing_hosts": ("claimed", "listed", "left"),
    "openstack_account": ("user", "limits", "present", "revoked", "absent"),
    "aws_quotas": ("quotas",),
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "folder": {"type": "path"},  # the run's
    "state": {"required": True, "choices": [state for states in STATES.values() for state in states]},
    "machines": {"type": "list", "elements": "dict", "default": []},
    "names": {"type": "list", "elements": "str", "default": []},  # of workers to forget
    "user": {"default": "fleet"},  # of ssh
    "files": {"type": "dict", "default": {}},  # of the first boot: from path on the worker to path here
    "lease": {"type": "int", "default": 3600},  # the first one, in seconds
    "expires": {"type": "int", "default": 0},  # of the workers, in seconds since the epoch
    "ssh_options": {"type": "dict", "default": {}},
    "hosts": {"type": "list", "elements": "dict", "default": []},  # the existing ones
    "run": {},
    "owner": {},
    "leave": {"default": ""},  # the script that removes, as root, what a run has put on a host
    "everywhere": {"type": "bool", "default": False},  # list the hosts, or revoke the credentials, of all runs
    "region": {},  # of AWS
    "endpoint": {"default": ""},
}


class ActionModule(ActionBase):  # type: ignore[misc] # Ansible is in an environment of its own
    """Run the action, without support for --check."""

    _supports_check_mode = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the module that has the state."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, parameters = self.validate_argument_spec(ARGUMENTS)
        name = next(name for name, states in STATES.items() if parameters["state"] in states)
        module = import_module(f"kiln.fleet.ansible.{name}")
        result |= module.result(json.loads(json.dumps(parameters)))  # without Ansible's own kinds of text
        return result
