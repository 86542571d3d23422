"""Expansion of a feedstock to its matrix: every config, each config's file, and the workflow that builds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from kiln.expand.ci_support import Drift, drift, matrix_difference, write
    from kiln.expand.ci_support_config_file import read, read_all, text
    from kiln.expand.conda_forge_yml_build_settings import (
        CondaSettings,
        ContainerSettings,
        ci_secret_names,
        conda_build_only,
        conda_settings,
        container_settings,
        package_settings,
        require_supported_priority,
        runs_emulated_tests,
    )
    from kiln.expand.matrix import configs
    from kiln.expand.matrix_settings import exclusive_config_file
    from kiln.expand.missing_pinning import KeyWithoutValue, keys_without_value, missing_values_error

__all__ = [
    "CondaSettings",
    "ContainerSettings",
    "Drift",
    "KeyWithoutValue",
    "ci_secret_names",
    "conda_build_only",
    "conda_settings",
    "configs",
    "container_settings",
    "drift",
    "exclusive_config_file",
    "keys_without_value",
    "matrix_difference",
    "missing_values_error",
    "package_settings",
    "read",
    "read_all",
    "require_supported_priority",
    "runs_emulated_tests",
    "text",
    "write",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "conda_forge_yml_build_settings": "CondaSettings ContainerSettings ci_secret_names conda_build_only "
        "conda_settings container_settings package_settings require_supported_priority runs_emulated_tests",
        "ci_support": "Drift drift matrix_difference write",
        "ci_support_config_file": "read read_all text",
        "matrix": "configs",
        "matrix_settings": "exclusive_config_file",
        "missing_pinning": "KeyWithoutValue keys_without_value missing_values_error",
    },
)
