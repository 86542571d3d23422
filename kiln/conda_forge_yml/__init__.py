"""conda-forge.yml: the schema of its settings, what kiln does with each, and its values."""

from __future__ import annotations

from kiln.conda_forge_yml.document import (
    NAME,
    WORKFLOW,
    SettingUse,
    TypedSettings,
    no_effect_notes,
    read_document,
    setting_uses,
)

__all__ = ["NAME", "WORKFLOW", "SettingUse", "TypedSettings", "no_effect_notes", "read_document", "setting_uses"]
