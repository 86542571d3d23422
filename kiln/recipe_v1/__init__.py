"""recipe.yaml (v1): what it says at one variant, and which variant keys it used to say it."""

from __future__ import annotations
