"""The environment of an output's script: variables of the variant, of the caller, and of conda-build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import channel_url_credentials
from kiln.build.engine_recipe import caller_variable_names
from kiln.variants.cuda_version import cuda_version_of_config

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.rendered import Output, RenderedConfig

NOT_VARIABLES = ("perl", "lua", "r", "numpy", "python")  # conda-build has variables of other names for them


def config_caller_variable_names(rendered: RenderedConfig) -> tuple[str, ...]:
    """Return the names of the caller's variables that scripts of a config get, from ``build/script_env``."""
    outputs = (name for output in rendered.outputs for name in output.script_env)
    steps = (name for staging in rendered.stagings for name in staging.script_env)
    return caller_variable_names((*steps, *outputs))


def cuda_override(rendered: RenderedConfig) -> dict[str, str]:
    """Return the variable with which a CUDA config is solved on a machine without a GPU, as in conda-forge's builds."""
    version = cuda_version_of_config(rendered.config)
    return {} if version is None else {"CONDA_OVERRIDE_CUDA": version}


def script_environment(output: Output, rendered: RenderedConfig, recipe_folder: Path) -> dict[str, str]:
    """Return the variables that conda-build sets for a script and rattler-build does not.

    They are every variant key whose name can be a variable's, and the recipe's folder.
    """
    variables = exportable_variables({**output.variant, **output.used_keys_as_text})
    return {**variant_variables(rendered), **variables, "RECIPE_DIR": str(recipe_folder)}


def variant_variables(rendered: RenderedConfig) -> dict[str, str]:
    """Return the config's variant as variables, the first value of each key; and the other keys of a meta.yaml.

    A script may read keys of the variant file in the recipe's folder that no config has, because the recipe does not
    use them. Source: get_dict in conda_build/environ.py.
    """
    others = rendered.outputs[0].all_keys if rendered.outputs else {}
    texts = {key: value for key, value in others.items() if isinstance(value, str) and key not in NOT_VARIABLES}
    return exportable_variables(
        {**texts, **{key: values[0] for key, values in rendered.config.variant.items() if values}}
    )


def exportable_variables(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values whose names can be variables', without channels' credentials: packages contain them."""
    return {
        key: ",".join(map(channel_url_credentials.url_without_credentials, value.split(",")))
        for key, value in values.items()
        if key.isidentifier() and not key.startswith("__")
    }
