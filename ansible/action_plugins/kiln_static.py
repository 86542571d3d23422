"""The action kiln_static: see kiln_run."""

from ansible.plugins.loader import action_loader

ActionModule = action_loader.get("kiln_run", class_only=True)
