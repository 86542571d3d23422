"""Expansion of a feedstock to its matrix: every config, each config's file, and the workflow that builds them."""

from __future__ import annotations

from kiln.expand.build_settings import (
    CondaSettings,
    ContainerSettings,
    conda_build_only,
    conda_settings,
    container_settings,
    package_settings,
    require_channel_priority,
    runs_emulated_tests,
    secrets,
)
from kiln.expand.ci_support import Drift, drift, write
from kiln.expand.ci_support_check import changes_since_rerender
from kiln.expand.config_file import read, read_all, text
from kiln.expand.keys_without_value import Need, keys_without_value, missing_values, require_values
from kiln.expand.matrix import configs
from kiln.expand.matrix_settings import exclusive_config_file

__all__ = [
    "CondaSettings",
    "ContainerSettings",
    "Drift",
    "Need",
    "changes_since_rerender",
    "conda_build_only",
    "conda_settings",
    "configs",
    "container_settings",
    "drift",
    "exclusive_config_file",
    "keys_without_value",
    "missing_values",
    "package_settings",
    "read",
    "read_all",
    "require_channel_priority",
    "require_values",
    "runs_emulated_tests",
    "secrets",
    "text",
    "write",
]
