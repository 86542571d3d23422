"""YAML as conda-build reads it and conda-smithy writes it: with positions, and with bounds on the input."""

from __future__ import annotations

from kiln.yamltext.reader import Document, PlacedText, Scalars, parse, read_text
from kiln.yamltext.writer import mapping_text

__all__ = ["Document", "PlacedText", "Scalars", "mapping_text", "parse", "read_text"]
