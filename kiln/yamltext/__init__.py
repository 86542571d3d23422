"""YAML as conda-build reads and conda-smithy writes it, with positions kept and input bounded."""

from __future__ import annotations

from kiln.yamltext.reader import Document, Scalars, parse, read_text
from kiln.yamltext.writer import mapping_text

__all__ = ["Document", "Scalars", "mapping_text", "parse", "read_text"]
