"""The same builds on many workers."""
