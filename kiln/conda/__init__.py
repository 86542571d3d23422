"""Conda's own things: specs, package files, channel indexes, solves, installs, provenance."""
