"""Conversion of a feedstock from meta.yaml to recipe.yaml, with a proof that both render to the same."""

from __future__ import annotations

from kiln.convert.feedstock import Conversion, convert, write_conversion
from kiln.convert.proof import Difference

__all__ = ["Conversion", "Difference", "convert", "write_conversion"]
