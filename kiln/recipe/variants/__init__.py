"""Variant files: their merging, migrations, and the space of variants."""
