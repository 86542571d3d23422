"""Check that .ci_support is up to date before configs are built from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import limits
from kiln.console.text import quantity
from kiln.errors import KilnError
from kiln.expand import ci_support, config_file, matrix, matrix_settings, missing_pinning
from kiln.variants.files import as_list, load_variant_file

if TYPE_CHECKING:
    from kiln.model.feedstock import Feedstock

# Keys whose values conda-smithy computes from several files, or that are not values.
_COMPUTED = frozenset(
    [
        "docker_image",
        "zip_keys",
        "pin_run_as_build",
        "extend_keys",
        "MACOSX_DEPLOYMENT_TARGET",
        "MACOSX_SDK_VERSION",
        "c_stdlib_version",
        "target_platform",
        "cdt_name",
    ]
)


def matrix_difference(feedstock: Feedstock) -> str:
    """Return by how much .ci_support differs from the feedstock's matrix, empty when it is up to date.

    Of a feedstock that needs a pinning, whose newest version always differs, only the values of its own variant file
    are compared. It is also empty where the files are invalid, which the build reports.
    """
    try:
        return limits.run_bounded(lambda: _changes(feedstock))
    except KilnError:
        return ""


def _changes(feedstock: Feedstock) -> str:
    own_pinning = matrix_settings.exclusive_config_file(feedstock)
    if own_pinning is None and missing_pinning.keys_without_value(feedstock):
        return _changed_values(feedstock)
    return ci_support.drift(feedstock, matrix.configs(feedstock, own_pinning)).summary


def _changed_values(feedstock: Feedstock) -> str:
    """Return the keys whose values in .ci_support are not among those of the feedstock's own variant file."""
    migrations = (feedstock.configs / "migrations").glob("*.yaml")
    skipped = _COMPUTED.union(*(load_variant_file(path, path.name).keys for path in migrations))
    names = feedstock.config_names
    configs = config_file.read_all(feedstock, names)
    own_values = matrix.own_values_getter(feedstock)
    changed: dict[str, int] = {}
    for config in configs:
        for key, values in own_values(config.platform).items():
            existing = {value.lower() for value in config.variant.get(key, ())}  # truths have two spellings
            if key not in skipped and not existing <= {str(value).lower() for value in as_list(values)}:
                changed[key] = changed.get(key, 0) + 1
    return ", ".join(
        f"{key} in {count} of {quantity(len(configs), 'config')}" for key, count in sorted(changed.items())
    )
