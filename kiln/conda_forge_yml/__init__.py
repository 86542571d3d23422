"""conda-forge.yml: the schema of its settings, what kiln does with each, and its values."""

from __future__ import annotations

from kiln.conda_forge_yml import workflow_values
from kiln.conda_forge_yml.document import NAME, SettingUse, TypedSettings, no_effect_notes, parsed, uses

__all__ = ["NAME", "SettingUse", "TypedSettings", "no_effect_notes", "parsed", "uses", "workflow_values"]
