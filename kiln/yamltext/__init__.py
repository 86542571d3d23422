"""YAML as conda-build reads it and conda-smithy writes it: with positions, and with bounds on the input."""

from __future__ import annotations

from kiln.yamltext.ci_support_writer import ci_support_text
from kiln.yamltext.strict_reader import (
    Document,
    PlacedText,
    ScalarInterpretation,
    parse_document,
    place_of_key_path,
    read_text,
)

__all__ = [
    "Document",
    "PlacedText",
    "ScalarInterpretation",
    "ci_support_text",
    "parse_document",
    "place_of_key_path",
    "read_text",
]
