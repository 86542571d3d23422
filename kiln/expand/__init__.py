"""Expansion of a feedstock to its matrix: every config, each config's file, and the workflow that builds them."""

from __future__ import annotations

from kiln.expand.ci_support import Drift, drift, write
from kiln.expand.conda_forge_yml import (
    CondaSettings,
    PackageSettings,
    conda_settings,
    exclusive_config_file,
    package_format,
)
from kiln.expand.config_file import read, read_all, text
from kiln.expand.matrix import configs
from kiln.expand.stale import changes_since_rerender
from kiln.expand.unpinned_keys import Need, lacking, missing_values, require_values

__all__ = [
    "CondaSettings",
    "Drift",
    "Need",
    "PackageSettings",
    "changes_since_rerender",
    "conda_settings",
    "configs",
    "drift",
    "exclusive_config_file",
    "lacking",
    "missing_values",
    "package_format",
    "read",
    "read_all",
    "require_values",
    "text",
    "write",
]
