"""The values of ``workflow_settings`` in conda-forge.yml, which hold for systems, platforms or CI services.

Source: ``get_workflow_settings`` and ``_load_forge_config`` of conda-smithy (conda_smithy/utils.py and
configure_feedstock.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.conda_forge_yml.document import TypedSettings

SECTION = "workflow_settings"


def workflow_setting(settings: TypedSettings, name: str, *, provider: str, platform: str) -> Any:
    """Return a setting's value for a platform, such as ``linux-64``, on a CI service; None without one.

    Of several values that hold, the last one counts.
    """
    value = settings.mapping(SECTION).get(name)
    if not isinstance(value, list):
        return value
    conditions = {"os": platform.partition("-")[0], "platform": platform.replace("-", "_"), "provider": provider}
    values = [entry.get("value") for entry in value if isinstance(entry, dict) and _holds(entry, conditions)]
    return values[-1] if values else None


def _holds(entry: Mapping[str, Any], conditions: Mapping[str, str]) -> bool:
    for key, actual in conditions.items():
        expected = entry.get(key)
        if expected is not None and actual not in (expected if isinstance(expected, list) else [expected]):
            return False
    return True
