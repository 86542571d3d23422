"""Recipes in conda-build's format, meta.yaml."""
