"""conda-forge.yml: the schema of its settings, what kiln does with each, and its values."""

from __future__ import annotations

from kiln.conda_forge_yml.document import WORKFLOW, TypedSettings, no_effect_notes, read_document, setting_uses

__all__ = ["WORKFLOW", "TypedSettings", "no_effect_notes", "read_document", "setting_uses"]
