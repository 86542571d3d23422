"""The call of rattler-build: its recipe, sources and scripts, and what it leaves."""
