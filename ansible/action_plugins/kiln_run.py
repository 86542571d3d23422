"""The actions kiln_run and kiln_static: modules of the controller, run in the playbook's own process.

As a module, each would be packed, and compiled anew with all of Ansible's code that it imports, in a process of its
own: 0.4 s of processor time for each task, next to which its work is little.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

PLAYBOOKS = Path(__file__).parents[1]
SHARED = ("kiln_ssh", "kiln_host_note")  # what these modules import from ansible.module_utils, in this order


class ActionModule(ActionBase):  # type: ignore[misc] # Ansible is in an environment of its own
    """Run the module of the task's action, as a module without support for --check."""

    _supports_check_mode = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        module = controller_module(self._task.action)
        _, parameters = self.validate_argument_spec(module.ARGUMENTS)
        result |= module.result(json.loads(json.dumps(parameters)))  # without Ansible's own kinds of text
        return result


@cache
def controller_module(name: str) -> Any:
    """Return a module of the folder ``library``."""
    for shared in SHARED:
        _imported(f"ansible.module_utils.{shared}", PLAYBOOKS / "module_utils" / f"{shared}.py")
    return _imported(name, PLAYBOOKS / "library" / f"{name}.py")


def _imported(name: str, file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
