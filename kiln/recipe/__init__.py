"""What a recipe says at one variant: its values, its outputs, the keys it uses, and what these make of its name."""

from __future__ import annotations
