"""Conversion of a feedstock from meta.yaml to recipe.yaml, with a proof that both render to the same."""

from __future__ import annotations
