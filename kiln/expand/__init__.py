"""Expansion of a feedstock to its matrix: every config, each config's file, and the workflow that builds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from kiln.expand.ci_support_config_file import config_file_text, read_config, read_configs
    from kiln.expand.ci_support_update_and_drift import ci_support_drift, matrix_difference, write_ci_support
    from kiln.expand.conda_forge_yml_build_settings import (
        ci_secret_names,
        conda_build_only_settings,
        conda_settings,
        container_settings,
        package_settings,
        require_supported_priority,
        runs_emulated_tests,
    )
    from kiln.expand.keys_needing_pinning import KeyWithoutValue, keys_without_value, missing_values_error
    from kiln.expand.matrix import configs
    from kiln.expand.matrix_settings import exclusive_config_file

__all__ = [
    "KeyWithoutValue",
    "ci_secret_names",
    "ci_support_drift",
    "conda_build_only_settings",
    "conda_settings",
    "config_file_text",
    "configs",
    "container_settings",
    "exclusive_config_file",
    "keys_without_value",
    "matrix_difference",
    "missing_values_error",
    "package_settings",
    "read_config",
    "read_configs",
    "require_supported_priority",
    "runs_emulated_tests",
    "write_ci_support",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "conda_forge_yml_build_settings": "ci_secret_names conda_build_only_settings conda_settings "
        "container_settings package_settings require_supported_priority runs_emulated_tests",
        "ci_support_update_and_drift": "ci_support_drift matrix_difference write_ci_support",
        "ci_support_config_file": "read_config read_configs config_file_text",
        "matrix": "configs",
        "matrix_settings": "exclusive_config_file",
        "keys_needing_pinning": "KeyWithoutValue keys_without_value missing_values_error",
    },
)
