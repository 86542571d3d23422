"""``kiln fleet``: builds on many workers."""
