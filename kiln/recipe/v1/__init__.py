"""Recipes in rattler-build's format, recipe.yaml."""
