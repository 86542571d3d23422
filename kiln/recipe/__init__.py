"""A recipe at one variant: its values, its outputs, the keys that it uses, its build strings."""

from __future__ import annotations
