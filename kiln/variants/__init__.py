"""Variant files: read, combined, migrated and spanned into the space of all variants."""

from __future__ import annotations
